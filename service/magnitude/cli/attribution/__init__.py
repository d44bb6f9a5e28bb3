"""What `magnitude attribute` does. Modules beside the verbs are imported at every command, those in here are not."""
