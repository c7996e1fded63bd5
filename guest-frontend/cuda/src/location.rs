//! Locations of memory: a device, the host, or a NUMA node of the host.

use std::ffi::c_int;
use std::path::PathBuf;

use paragpu_abi::{
    CU_MEM_ALLOCATION_TYPE_MANAGED as MANAGED, CU_MEM_ALLOCATION_TYPE_PINNED as PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE as DEVICE, CU_MEM_LOCATION_TYPE_HOST as HOST,
    CU_MEM_LOCATION_TYPE_HOST_NUMA as HOST_NUMA,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as HOST_NUMA_CURRENT, CU_MEM_LOCATION_TYPE_NONE as NONE,
    CUdevice, cudaMemLocation, cudaMemPoolProps,
};
use paragpu_protocol::status::Status;

use crate::managed::Location;
use crate::objects::pool::PoolLocation;
use crate::sys::{Result, device, unsupported_use};

/// Whether the machine has this NUMA node. Without NUMA it has node 0.
pub fn is_node(id: c_int) -> bool {
    let listed = || PathBuf::from(format!("/sys/devices/system/node/node{id}")).exists();
    id == 0 || (id > 0 && listed())
}

/// The NUMA node of the calling thread. Without NUMA it is node 0.
pub fn current_node() -> c_int {
    let processor = rustix::thread::sched_getcpu();
    let listed = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}"));
    let mut names = listed
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
        .unwrap_or(0)
}

/// The ordinal of the device on which a memory node of a graph allocates.
pub fn ordinal_of(properties: &cudaMemPoolProps) -> Result<u32> {
    match location_of_pool(properties)? {
        PoolLocation::Device(ordinal) => Ok(ordinal),
        PoolLocation::Host(_) | PoolLocation::Managed(_) => Err(unsupported_use!(
            "memory nodes of graphs in the host",
            "nodes of graphs allocate memory of devices only"
        )),
    }
}

/// The device of a location; an error for any other location.
pub fn device_of(location: &cudaMemLocation) -> Result<CUdevice> {
    if location.r#type == DEVICE {
        Ok(location.id)
    } else {
        Err(Status::NOT_SUPPORTED)
    }
}

/// The location of the memory of a pool with these properties.
pub fn location_of_pool(properties: &cudaMemPoolProps) -> Result<PoolLocation> {
    match properties.allocType {
        PINNED | MANAGED => resolve(&properties.location, properties.allocType),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The location of memory of an allocation type.
pub fn resolve(location: &cudaMemLocation, kind: c_int) -> Result<PoolLocation> {
    let named = |id| Location {
        kind: location.r#type,
        id,
    };
    match (kind, location.r#type) {
        (PINNED, DEVICE) => device::ordinal(location.id).map(PoolLocation::Device),
        (PINNED, HOST) => Ok(PoolLocation::Host(named(0))),
        (PINNED, HOST_NUMA) if is_node(location.id) => Ok(PoolLocation::Host(named(location.id))),
        (MANAGED, NONE) => Ok(PoolLocation::Managed(Location::INVALID)),
        (MANAGED, DEVICE) => {
            device::ordinal(location.id)?;
            Ok(PoolLocation::Managed(named(location.id)))
        }
        (MANAGED, HOST) => Ok(PoolLocation::Managed(named(0))),
        (MANAGED, HOST_NUMA) if is_node(location.id) => {
            Ok(PoolLocation::Managed(named(location.id)))
        }
        // As natively, an unknown type of location is not INVALID_VALUE.
        (_, kind) if !(NONE..=HOST_NUMA_CURRENT).contains(&kind) => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(kind: c_int, id: c_int) -> cudaMemLocation {
        cudaMemLocation { r#type: kind, id }
    }

    #[test]
    fn the_host_and_its_nodes_are_places() {
        let host = |kind, id| Ok(PoolLocation::Host(Location { kind, id }));
        assert_eq!(resolve(&at(HOST, 77), PINNED), host(HOST, 0));
        assert_eq!(resolve(&at(HOST_NUMA, 0), PINNED), host(HOST_NUMA, 0));
        for (kind, id, of) in [
            (HOST_NUMA, -1, PINNED),
            (HOST_NUMA, 1 << 20, PINNED),
            (HOST_NUMA_CURRENT, 0, PINNED),
            (HOST_NUMA_CURRENT, 0, MANAGED),
            (NONE, 0, PINNED),
            (HOST, 0, 0),
            (HOST, 0, 3),
        ] {
            let found = resolve(&at(kind, id), of);
            assert_eq!(found, Err(Status::INVALID_VALUE), "{kind} {id} {of}");
        }
        assert_eq!(resolve(&at(77, 0), PINNED), Err(Status::NOT_SUPPORTED));
        let none = PoolLocation::Managed(Location::INVALID);
        assert_eq!(resolve(&at(NONE, 5), MANAGED), Ok(none));
        assert!(is_node(current_node()));
    }
}
