SUMMARY = "magnitude-image with tests, benches, and tools to look into a board"
DESCRIPTION = "For measuring and soaking on a bench. It has the same partitions, the same units and no password \
    either, so that what is found here holds for the other."

require magnitude-image.bb

IMAGE_INSTALL += "packagegroup-magnitude-debug"
