//! A PCI function served over vfio-user: config space, BARs, interrupts and DMA on one socket.
