"""Commands beside the daemon: offsets, groups, the doctor, dry runs, the demo."""
