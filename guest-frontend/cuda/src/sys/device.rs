//! Initialisation and devices (CUDA Driver API, Initialization, Version
//! Management, Device Management).

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use paragpu_abi::{CUdevice, CUdevprop, CUuuid};
use paragpu_client::snapshot::Snapshot;
use paragpu_client::{Error, Session, chain};
use paragpu_config::guest::Guest;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use super::boundary::{Out, Text};
use super::{Result, put, put_text};

/// The version that cuda.h of this interface has.
const INTERFACE_VERSION: i32 = 13_000;

static INITIALIZED: AtomicBool = AtomicBool::new(false);
static OPENING: Mutex<()> = Mutex::new(());
static CONFIG: OnceLock<Guest> = OnceLock::new();
static SESSIONS: [OnceLock<&'static Session>; MAX_DEVICES as usize] =
    [const { OnceLock::new() }; MAX_DEVICES as usize];
static SNAPSHOTS: [OnceLock<Arc<Snapshot>>; MAX_DEVICES as usize] =
    [const { OnceLock::new() }; MAX_DEVICES as usize];

/// Was cuInit successful?
pub fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::Acquire)
}

/// Says once why there is no session.
fn say(error: &Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("paragpu: {}", chain(error));
    }
}

fn config() -> Result<&'static Guest, Error> {
    if let Some(config) = CONFIG.get() {
        return Ok(config);
    }
    let config = Guest::load().map_err(|error| Error::Configuration(Box::new(error)))?;
    if !config.stats.file.as_os_str().is_empty() {
        paragpu_client::write_statistics_to(config.stats.file.clone());
    }
    Ok(CONFIG.get_or_init(|| config))
}

/// The session of a device, opened at its first use.
pub fn session(ordinal: u32) -> Result<&'static Session> {
    let place = SESSIONS
        .get(ordinal as usize)
        .ok_or(Status::INVALID_DEVICE)?;
    if let Some(session) = place.get() {
        return Ok(session);
    }
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(session) = place.get() {
        return Ok(session);
    }
    let opened = config().and_then(|config| Session::open(config, ordinal));
    match opened {
        // Sessions live as long as the process.
        Ok(session) => Ok(*place.get_or_init(|| &**Box::leak(Box::new(session)))),
        Err(error) => {
            say(&error);
            Err(error.status())
        }
    }
}

/// The session of a device, if it was ever used.
pub fn session_if_open(ordinal: u32) -> Option<&'static Session> {
    SESSIONS.get(ordinal as usize)?.get().copied()
}

/// How many devices there are.
pub fn count() -> Result<u32> {
    Ok(session(0)?.device_count().min(MAX_DEVICES))
}

/// A device's number, checked.
pub fn ordinal(device: CUdevice) -> Result<u32> {
    let ordinal = u32::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
    if ordinal < count()? {
        Ok(ordinal)
    } else {
        Err(Status::INVALID_DEVICE)
    }
}

/// All that is constant about a device.
pub fn snapshot(device: CUdevice) -> Result<&'static Snapshot> {
    let ordinal = ordinal(device)?;
    let place = SNAPSHOTS
        .get(ordinal as usize)
        .ok_or(Status::INVALID_DEVICE)?;
    if let Some(snapshot) = place.get() {
        return Ok(snapshot);
    }
    let first = session(0)?;
    let snapshot = if ordinal == 0 {
        first.snapshot()?
    } else {
        first.device().snapshot_of(ordinal)?
    };
    Ok(place.get_or_init(|| snapshot))
}

fn find_by_bus_id(wanted: &str) -> Result<CUdevice> {
    let normal = |id: &str| -> Option<[u32; 4]> {
        let mut parts: Vec<&str> = id.split([':', '.']).collect();
        if parts.len() == 3 {
            parts.insert(0, "0");
        }
        let numbers: Option<Vec<u32>> = parts
            .iter()
            .map(|part| u32::from_str_radix(part, 16).ok())
            .collect();
        numbers?.try_into().ok()
    };
    let wanted = normal(wanted).ok_or(Status::INVALID_VALUE)?;
    for device in 0..count()?.cast_signed() {
        if normal(&snapshot(device)?.pci_bus_id) == Some(wanted) {
            return Ok(device);
        }
    }
    Err(Status::INVALID_DEVICE)
}

pub(crate) fn cuInit(flags: c_uint) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if is_initialized() {
        return session(0)?.check();
    }
    if count()? == 0 {
        return Err(Status::NO_DEVICE);
    }
    INITIALIZED.store(true, Ordering::Release);
    Ok(())
}

pub(crate) fn cuDriverGetVersion(version: Out<'_, c_int>) -> Result {
    version.put(INTERFACE_VERSION)
}

pub(crate) unsafe fn cuDeviceGet(device: *mut CUdevice, number: c_int) -> Result {
    ordinal(number)?;
    put(device, number)
}

pub(crate) fn cuDeviceGetCount(number: Out<'_, c_int>) -> Result {
    number.put(count()?.cast_signed())
}

pub(crate) unsafe fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> Result {
    put_text(name, length, &snapshot(device)?.name)
}

pub(crate) unsafe fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) -> Result {
    put(
        uuid,
        CUuuid {
            bytes: snapshot(device)?.uuid,
        },
    )
}

pub(crate) fn cuDeviceGetLuid(luid: *mut c_char, mask: *mut c_uint, device: CUdevice) -> Result {
    ordinal(device)?;
    let _ = (luid, mask);
    Err(Status::NOT_SUPPORTED)
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: CUdevice) -> Result {
    bytes.put(usize::try_from(snapshot(device)?.total_memory).unwrap_or(usize::MAX))
}

pub(crate) fn cuDeviceGetAttribute(
    value: Out<'_, c_int>,
    attribute: c_int,
    device: CUdevice,
) -> Result {
    let attribute = u32::try_from(attribute).map_err(|_| Status::INVALID_VALUE)?;
    let found = snapshot(device)?.attribute(attribute);
    value.put(found.ok_or(Status::INVALID_VALUE)?)
}

pub(crate) fn cuDeviceGetProperties(properties: Out<'_, CUdevprop>, device: CUdevice) -> Result {
    let snapshot = snapshot(device)?;
    let get = |attribute| snapshot.attribute(attribute).unwrap_or(0);
    properties.put(CUdevprop {
        maxThreadsPerBlock: get(1),
        maxThreadsDim: [get(2), get(3), get(4)],
        maxGridSize: [get(5), get(6), get(7)],
        sharedMemPerBlock: get(8),
        totalConstantMemory: get(9),
        SIMDWidth: get(10),
        memPitch: get(11),
        regsPerBlock: get(12),
        clockRate: get(13),
        textureAlign: get(14),
    })
}

pub(crate) fn cuDeviceComputeCapability(
    major: Out<'_, c_int>,
    minor: Out<'_, c_int>,
    device: CUdevice,
) -> Result {
    let snapshot = snapshot(device)?;
    major.put(snapshot.attribute(75).unwrap_or(0))?;
    minor.put(snapshot.attribute(76).unwrap_or(0))
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(
    id: *mut c_char,
    length: c_int,
    device: CUdevice,
) -> Result {
    put_text(id, length, &snapshot(device)?.pci_bus_id)
}

pub(crate) fn cuDeviceGetByPCIBusId(device: Out<'_, CUdevice>, id: Text<'_>) -> Result {
    device.put(find_by_bus_id(id.get()?)?)
}

pub(crate) fn cuDeviceCanAccessPeer(
    can: Out<'_, c_int>,
    device: CUdevice,
    peer: CUdevice,
) -> Result {
    ordinal(device)?;
    ordinal(peer)?;
    can.put(0)
}

pub(crate) fn cuDeviceGetP2PAttribute(
    value: Out<'_, c_int>,
    attribute: c_int,
    from: CUdevice,
    to: CUdevice,
) -> Result {
    if ordinal(from)? == ordinal(to)? {
        return Err(Status::INVALID_DEVICE);
    }
    if !(1..=5).contains(&attribute) {
        return Err(Status::INVALID_VALUE);
    }
    value.put(0)
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    width: Out<'_, usize>,
    format: c_int,
    channels: c_uint,
    device: CUdevice,
) -> Result {
    let most = snapshot(device)?.attribute(69).unwrap_or(0);
    // The attribute counts elements, whatever their size.
    paragpu_client::texture::element_bytes(format.cast_unsigned(), channels)
        .ok_or(Status::INVALID_VALUE)?;
    width.put(usize::try_from(most).unwrap_or(0))
}

pub(crate) fn cuDeviceGetExecAffinitySupport(
    value: Out<'_, c_int>,
    kind: c_int,
    device: CUdevice,
) -> Result {
    ordinal(device)?;
    if kind != 0 {
        return Err(Status::INVALID_VALUE);
    }
    value.put(0)
}
