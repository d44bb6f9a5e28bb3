"""One worker process for each contender, speaking JSON lines over stdin and stdout.

The workers run in different environments (ours, the peers'), so they share nothing but the standard library.
"""
