//! One DMA request: its route, the copy, the guest memory map and the counters.
