# Packages a wheel as its project publishes it, for what has no recipe in the layers below and is no sensible build of
# its own (large C++ or Rust programs whose builds fetch what they need). A recipe says
#
#   PYPI_PACKAGE            the name in front of the wheel's file name
#   WHEEL_TAGS              the rest of it, when the wheel is for any machine (py3-none-any)
#   WHEEL_TAGS[aarch64]     ... or one for each machine
#   SRC_URI[wheel.sha256sum], or SRC_URI[wheel-aarch64.sha256sum] and so on
#   WHEEL_TREES             what is taken out of it: folders and modules, relative to the wheel's root
#
# BitBake unpacks archives by their ending and does not know `.whl`, hence the name under which it is kept.

inherit pypi python3native python3-dir setuptools3-base

WHEEL_TAGS ??= ""
WHEEL_TREES ??= "${PYPI_PACKAGE}"

def wheel_tags(d):
    return d.getVarFlag("WHEEL_TAGS", d.getVar("HOST_ARCH")) or d.getVar("WHEEL_TAGS")

def wheel_uri(d):
    tags = wheel_tags(d)
    if not tags:
        return ""
    package = d.getVar("PYPI_PACKAGE")
    file = "%s-%s-%s.whl" % (package, d.getVar("PV"), tags)
    name = "wheel" if d.getVar("WHEEL_TAGS") else "wheel-" + d.getVar("HOST_ARCH")
    # Where PyPI's files lie is the pypi class' business; wheels lie beside the sources, by the first of their tags.
    base = pypi_src_uri(d).partition("/source/")[0]
    return "%s/%s/%s/%s/%s;name=%s;downloadfilename=%s.zip;subdir=%s" % (
        base, tags.partition("-")[0], package[0], package, file, name, file, d.getVar("BP"))

PYPI_SRC_URI = "${@wheel_uri(d)}"
S = "${UNPACKDIR}/${BP}"

# A wheel that holds machine code works with one version of Python, unless it keeps to the stable ABI.
python () {
    tags = wheel_tags(d)
    if not tags:
        raise bb.parse.SkipRecipe("there is no wheel for %s" % d.getVar("HOST_ARCH"))
    python, abi = tags.split("-")[:2]
    ours = "cp" + d.getVar("PYTHON_BASEVERSION").replace(".", "")
    if abi not in ("abi3", "none") and python != ours:
        raise bb.parse.SkipRecipe("the wheel is for %s, this Python is %s" % (python, ours))
    if abi != "none" and "musl" in d.getVar("HOST_OS"):
        raise bb.parse.SkipRecipe("the wheel links against glibc")
}

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${PYTHON_SITEPACKAGES_DIR}
    for tree in ${WHEEL_TREES} ${PYPI_PACKAGE}-${PV}.dist-info; do
        cp -R --no-preserve=ownership,mode ${S}/$tree ${D}${PYTHON_SITEPACKAGES_DIR}/
    done
    rm -f ${D}${PYTHON_SITEPACKAGES_DIR}/*.dist-info/RECORD
    # The root is read-only on the device: what is not compiled here is compiled at every start.
    nativepython3 -m compileall -q -s ${D} -p / ${D}${PYTHON_SITEPACKAGES_DIR}
}

FILES:${PN} += "${PYTHON_SITEPACKAGES_DIR}"

# The projects strip their libraries themselves.
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_SYSROOT_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
# Already stripped for that reason; linked by the projects' own tools with their own flags.
# nooelint: oelint.vars.insaneskip
INSANE_SKIP:${PN} += "already-stripped ldflags"

BBCLASSEXTEND = "native"
