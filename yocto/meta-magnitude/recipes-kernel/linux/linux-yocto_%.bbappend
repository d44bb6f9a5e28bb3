# Under this distribution only: a layer that is merely there changes nothing for others.
FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"
SRC_URI:append:magnitude-os = " file://magnitude.cfg"
