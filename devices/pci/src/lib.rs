//! What every PCI function has: config space, BARs, capabilities, MSI-X.
