"""``headrace doctor``: what a configuration needs, looked at where it is to run."""
