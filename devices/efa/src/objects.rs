//! What a driver creates on the adapter: protection domains, queues, memory regions.
