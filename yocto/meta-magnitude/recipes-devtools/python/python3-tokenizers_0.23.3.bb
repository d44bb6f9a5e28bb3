SUMMARY = "Fast tokenizers for language models"
DESCRIPTION = "Turns text into the tokens of a model and back."
HOMEPAGE = "https://github.com/huggingface/tokenizers"
SECTION = "devel/python"
LICENSE = "Apache-2.0"
# The wheel brings no licence text; its metadata names this one.
# nooelint: oelint.var.licenseremotefile
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

WHEEL_TAGS[aarch64] = "cp310-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64"
WHEEL_TAGS[x86_64] = "cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "ec82e80e65a862275b97c3d90b7a523df8d9519ee48aeb4e9625b2cc909274e0"
SRC_URI[wheel-x86_64.sha256sum] = "376851d22bcf9d650a5c3090bb83e6cf9e895fbf0595369fa4cd43c1f69b5f87"

inherit magnitude_wheel

# Its metadata also asks for huggingface-hub, which it imports only to download a tokenizer by name. Nothing on a
# device does that.
