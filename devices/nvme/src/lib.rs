//! NVMe controller with a Controller Memory Buffer, served over vfio-user.
