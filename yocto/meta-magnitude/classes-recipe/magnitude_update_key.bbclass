# Updates are signed by whoever builds them. There is no key in this layer and no default: an image that trusts a key
# that others have is an image that others can replace.

python () {
    import os

    missing = [name for name in (d.getVar("MAGNITUDE_UPDATE_KEY_FILES") or "MAGNITUDE_KEYRING_FILE").split()
               if not os.path.isfile(d.getVar(name) or "")]
    if missing:
        raise bb.parse.SkipRecipe(
            "%s must name your own files: scripts/make-update-key DIR makes a key for development, docs/updates.md says how to keep one for devices"
            % ", ".join(missing))
}
