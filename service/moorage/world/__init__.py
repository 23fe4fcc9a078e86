"""The world of processes, ports, log files and time: all system calls of this kind are here."""
