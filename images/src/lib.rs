//! How QEMU, the guest kernel, the initramfs and the guest's root come to be.
