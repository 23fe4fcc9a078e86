"""Wrong edits of the package, one at a time, and the tests and seeds that find each of them."""
