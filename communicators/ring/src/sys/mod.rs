//! Operating system interfaces: mappings, doorbells, the device node.

#[cfg(not(loom))]
pub(crate) mod fence_unsafe;
#[cfg(not(loom))]
pub(crate) mod guest_memory_unsafe;
#[cfg(not(loom))]
pub(crate) mod mapping_unsafe;
#[cfg(not(loom))]
pub(crate) mod node_unsafe;
#[cfg(not(loom))]
pub(crate) mod region_unsafe;
