SUMMARY = "What makes a board an inference service"
SUMMARY:${PN} = "The service, its models, and the system around it"
SUMMARY:${PN}-debug = "Tests, load and tools to look into a running board"
SUMMARY:${PN}-import = "What `magnitude import` needs for GGUF files and Hugging Face folders"
DESCRIPTION = "The service with the models that every image brings, what it needs of the system around it, and what \
    a person needs to bring a model of their own."

# Boards add to it what only they have.
PACKAGE_ARCH = "${MACHINE_ARCH}"

inherit features_check packagegroup

REQUIRED_DISTRO_FEATURES = "systemd"

# As for the service itself.
COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

PACKAGES = "${PN} ${PN}-import ${PN}-debug"

# Wi-Fi on every machine: where the board has none, a stick may be plugged in. util-linux' and iproute2's programs,
# because busybox' of the same names know less: `ip -json`, `agetty` with /etc/issue.d, `fsck` that systemd calls.
RDEPENDS:${PN} = "\
    ca-certificates \
    dosfstools \
    e2fsprogs-e2fsck \
    e2fsprogs-resize2fs \
    iproute2-ip \
    iw \
    kernel-modules \
    magnitude \
    magnitude-kernels \
    magnitude-models \
    magnitude-os-config \
    networkmanager \
    networkmanager-nmcli \
    networkmanager-wifi \
    openssh-keygen \
    openssh-sftp-server \
    openssh-sshd \
    util-linux-agetty \
    util-linux-fsck \
    util-linux-mount \
    util-linux-partx \
    util-linux-sfdisk \
    wireless-regdb-static \
    wpa-supplicant \
"

RDEPENDS:${PN}-import = "\
    python3-gguf \
    python3-onnx \
    python3-safetensors \
"

RDEPENDS:${PN}-debug = "\
    gdbserver \
    htop \
    iotop \
    iperf3 \
    lsof \
    magnitude-tests \
    perf \
    strace \
    stress-ng \
    tcpdump \
    usbutils \
"
