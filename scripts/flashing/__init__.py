"""What `scripts/flash` is made of. Needs Python 3.9 and its standard library only: it runs on any developer's Linux,
where the service and its packages are not installed."""
