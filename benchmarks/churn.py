"""The soak's load: four models, room for two, two closed-loop clients without retries.

Each request leases a random model, completes one token over HTTP and releases. For each kind of
llama.cpp server that runs here: completions a second, and how long a request takes.
"""

from __future__ import annotations

from typing import Any

import common

from soak import load


def churn(kind: str, fields: Any, seconds: float) -> dict[str, Any]:
    def specs(folder: common.Path) -> tuple[common.ModelSpec, ...]:
        return load.specs(folder / "tiny.gguf", fields)

    with common.service(specs) as (service, _):
        tally = load.run(service, seconds=seconds)
        loads = service._runtime.registry.state.next_run - 1  # noqa: SLF001  no public count
    assert not tally.failures, tally.failures[:3]
    return {
        f"{kind}: completions/s": tally.per_second,
        f"{kind}: loads/s": loads / tally.elapsed_s,
        f"{kind}: failures": len(tally.failures),
        f"{kind}: p50 ms": tally.quantile(0.5) * 1e3,
        f"{kind}: p99 ms": tally.quantile(0.99) * 1e3,
        f"{kind}: max ms": tally.quantile(1.0) * 1e3,
    }


def measure(seconds: float) -> common.Results:
    results: dict[str, Any] = {}
    for kind in load.KINDS:
        fields = load.fields_of(kind)
        if fields is not None:
            results |= churn(kind, fields, seconds)
    return results


def main() -> None:
    options = common.arguments(__doc__, seconds=(20.0, "for each kind of server"))
    common.report(measure(options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
