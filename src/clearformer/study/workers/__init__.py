"""Many runs at once: who computes which, the processes that do, and how far all of it is."""
