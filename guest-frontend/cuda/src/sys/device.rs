//! Initialisation and devices (CUDA Driver API, Initialization, Version
//! Management, Device Management).

use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH,
    CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, CUasyncCallback, CUasyncCallbackHandle,
    CUdevice, CUdevprop, CUuuid,
};
use paragpu_client::monitor::Monitor;
use paragpu_client::snapshot::Snapshot;
use paragpu_client::{Error, Session, chain, notice};
use paragpu_config::guest::Guest;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, except_fault, put_text};
use crate::objects::peers;
use crate::visible::{self, Candidate, Entry, Order};

/// The version of cuda.h that this interface implements.
const INTERFACE_VERSION: i32 = 13_000;
/// How long a host that did not answer in time is not tried again. Programs try twice in a
/// row, in cuDriverGetVersion and in cuInit, and would wait twice.
const PAUSE: Duration = Duration::from_secs(60);

static INITIALIZED: AtomicBool = AtomicBool::new(false);
static OPENING: Mutex<()> = Mutex::new(());
static CONFIG: OnceLock<Guest> = OnceLock::new();
static SESSIONS: [OnceLock<Arc<Session>>; MAX_DEVICES as usize] =
    [const { OnceLock::new() }; MAX_DEVICES as usize];
static ATTEMPTS: Attempts = Attempts {
    timeout: Mutex::new(None),
};
static SNAPSHOTS: [OnceLock<Arc<Snapshot>>; MAX_DEVICES as usize] =
    [const { OnceLock::new() }; MAX_DEVICES as usize];

/// Whether cuInit succeeded.
pub fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::Acquire)
}

/// Prints once why no session could be opened.
fn report(error: &Error) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        notice(format_args!("{}", chain(error)));
    }
}

/// Attempts to reach the host.
struct Attempts {
    /// When the last timeout ended, and its status.
    timeout: Mutex<Option<(Instant, Status)>>,
}

impl Attempts {
    /// Makes an attempt, unless one has ended with a timeout in the last [`PAUSE`]. Prints why
    /// it failed.
    fn make<T>(&self, attempt: impl FnOnce() -> Result<T, Error>) -> Result<T> {
        let timeout = *self.timeout.lock();
        if let Some((end, status)) = timeout
            && end.elapsed() < PAUSE
        {
            return Err(status);
        }
        attempt().map_err(|error| {
            report(&error);
            if error.is_timeout() {
                *self.timeout.lock() = Some((Instant::now(), error.status()));
            }
            error.status()
        })
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

/// Whether managed memory of `size` bytes may migrate, if all devices can access it.
pub fn migrates(size: u64) -> bool {
    // Another device has only a copy of pinned memory.
    let is_large = |config: &Guest| size > config.managed.pinned.0 || has_several();
    config().is_ok_and(|config| config.managed.migrate && is_large(config))
}

/// Whether the program sees several devices.
pub fn has_several() -> bool {
    visible().is_ok_and(|visible| visible.len() > 1)
}

/// Whether all other devices that the program sees can access the memory of `owner`'s. Those
/// that it has not used yet are queried over short-lived connections.
pub fn others_reach(owner: &Session) -> bool {
    let reaches = |ordinal: u32| {
        let attributes = match session_if_open(ordinal) {
            Some(session) => session.peer_attributes(owner),
            None => monitor(ordinal).and_then(|monitor| owner.peer_attributes_of(&monitor)),
        };
        peers::has_access(attributes)
    };
    let own = owner.ordinal();
    visible().is_ok_and(|all| all.iter().all(|other| *other == own || reaches(*other)))
}

/// The sessions of the other devices that the program uses.
pub fn others_than(session: &Session) -> impl Iterator<Item = &'static Session> {
    let others = (0..MAX_DEVICES).filter(|ordinal| *ordinal != session.ordinal());
    others.filter_map(session_if_open)
}

/// The session of a device, opened at its first use.
pub fn session(ordinal: u32) -> Result<&'static Session> {
    let slot = SESSIONS
        .get(ordinal as usize)
        .ok_or(Status::INVALID_DEVICE)?;
    if let Some(session) = slot.get() {
        return Ok(session);
    }
    let _one_at_a_time = OPENING.lock();
    if let Some(session) = slot.get() {
        return Ok(session);
    }
    let opened = ATTEMPTS.make(|| Session::open(config()?, ordinal))?;
    // It lives until the process exits.
    let publish = || slot.get_or_init(|| Arc::clone(&opened));
    Ok(peers::join(&opened, publish))
}

/// The session of a device, if it was ever used.
pub fn session_if_open(ordinal: u32) -> Option<&'static Session> {
    SESSIONS.get(ordinal as usize)?.get().map(Arc::as_ref)
}

/// The guest's ordinals of the devices that the program sees, in the order of
/// their numbers.
fn visible() -> Result<&'static [u32]> {
    static VISIBLE: OnceLock<Vec<u32>> = OnceLock::new();
    if let Some(visible) = VISIBLE.get() {
        return Ok(visible);
    }
    let entries = entries();
    let order = Order::of(std::env::var("CUDA_DEVICE_ORDER").ok().as_deref());
    if let Some(Entry::Mig(name)) = entries
        .iter()
        .flatten()
        .find(|e| matches!(e, Entry::Mig(_)))
    {
        report_mig(name);
    }
    let found = match entries.as_deref() {
        // A program that must see no devices needs no host.
        Some([] | [Entry::Mig(_), ..]) => Vec::new(),
        entries => match visible::select(candidates(order, entries)?, order, entries) {
            Ok(found) => found,
            Err(visible::Repeated) => return Err(Status::INVALID_DEVICE),
        },
    };
    Ok(VISIBLE.get_or_init(|| found))
}

/// The entries of CUDA_VISIBLE_DEVICES, if it is set.
fn entries() -> Option<Vec<Entry>> {
    visible::entries(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
}

/// Opens the device that answers for all, by its ordinal. If the first one is selected by its
/// number, it is that: programs that share a host's devices by number then use only their own
/// device.
fn answering<T>(entries: Option<&[Entry]>, open: impl Fn(u32) -> Result<T>) -> Result<T> {
    let first = match entries.and_then(<[Entry]>::first) {
        Some(Entry::Index(index)) if *index < MAX_DEVICES => *index,
        _ => 0,
    };
    match open(first) {
        Err(_) if first > 0 => open(0),
        opened => opened,
    }
}

/// Reports that MIG instances are not supported.
fn report_mig(name: &str) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        notice(format_args!(
            "not supported: {name} in CUDA_VISIBLE_DEVICES"
        ));
    }
}

/// The devices, with the properties that `order` and `entries` need.
fn candidates(order: Order, entries: Option<&[Entry]>) -> Result<Vec<Candidate>> {
    let is_uuid = |entry: &Entry| matches!(entry, Entry::Uuid(_));
    let needs_uuids = entries.is_some_and(|entries| entries.iter().any(is_uuid));
    if order != Order::Configured || needs_uuids {
        return described();
    }
    let session = answering(entries, session)?;
    let numbered = |ordinal| Candidate {
        ordinal,
        uuid: [0; 16],
        bus: String::new(),
        speed: 0,
    };
    Ok((0..session.device_count().min(MAX_DEVICES))
        .map(numbered)
        .collect())
}

/// A connection for queries.
fn monitor(ordinal: u32) -> Result<Monitor> {
    ATTEMPTS.make(|| Monitor::open(config()?, ordinal))
}

/// All devices with their properties. Each is queried over a separate short-lived
/// connection, so that the program has sessions only on devices that it uses.
fn described() -> Result<Vec<Candidate>> {
    let first = monitor(0)?;
    (0..first.device_count().min(MAX_DEVICES))
        .map(|ordinal| {
            let snapshot = match ordinal {
                0 => first.snapshot()?,
                _ => monitor(ordinal)?.snapshot()?,
            };
            let get = |attribute| snapshot.attribute(attribute).unwrap_or(0).max(0) as u64;
            Ok(Candidate {
                ordinal,
                uuid: snapshot.uuid,
                bus: snapshot.pci_bus_id.clone(),
                // Multiprocessors times clock rate.
                speed: get(16) * get(13),
            })
        })
        .collect()
}

/// The first device's session, which answers for all devices.
pub fn first_session() -> Result<&'static Session> {
    session(*visible()?.first().ok_or(Status::NO_DEVICE)?)
}

/// Number of devices that the program sees.
pub fn count() -> Result<u32> {
    u32::try_from(visible()?.len()).map_err(|_| Status::UNKNOWN)
}

/// The guest's ordinal of a device.
pub fn ordinal(device: CUdevice) -> Result<u32> {
    let number = usize::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
    visible()?
        .get(number)
        .copied()
        .ok_or(Status::INVALID_DEVICE)
}

/// The program's number of a device that it sees.
pub fn number(ordinal: u32) -> CUdevice {
    let visible = visible().unwrap_or_default();
    let index = visible.iter().position(|other| *other == ordinal);
    index
        .and_then(|index| CUdevice::try_from(index).ok())
        .unwrap_or(-1)
}

/// All that is constant about a device.
pub fn snapshot(device: CUdevice) -> Result<&'static Snapshot> {
    let ordinal = ordinal(device)?;
    let slot = SNAPSHOTS
        .get(ordinal as usize)
        .ok_or(Status::INVALID_DEVICE)?;
    if let Some(snapshot) = slot.get() {
        return Ok(snapshot);
    }
    // A session answers for its own device only.
    let snapshot = session(ordinal)?.snapshot()?;
    Ok(slot.get_or_init(|| snapshot))
}

/// The version of the host's driver. Programs query it before cuInit, and even if they
/// see no device. Without a host it is that of this interface.
fn driver_version() -> i32 {
    let known = match is_initialized() {
        true => snapshot(0).map(|snapshot| snapshot.driver_version),
        false => version_before_init(),
    };
    known
        .ok()
        .filter(|version| *version > 0)
        .unwrap_or(INTERFACE_VERSION)
}

/// The version of the host's driver, queried over a short-lived connection: with a session, a
/// child that the program forks before cuInit could not use CUDA.
fn version_before_init() -> Result<i32> {
    static VERSION: OnceLock<i32> = OnceLock::new();
    if let Some(version) = VERSION.get() {
        return Ok(*version);
    }
    let entries = entries();
    if let Some([] | [Entry::Mig(_), ..]) = entries.as_deref() {
        return Err(Status::NO_DEVICE);
    }
    let monitor = answering(entries.as_deref(), monitor)?;
    let version = monitor.snapshot()?.driver_version;
    Ok(*VERSION.get_or_init(|| version))
}

/// Domain, bus, device and function of one of the forms that cuDeviceGetByPCIBusId accepts:
/// `domain:bus:device.function`, `domain:bus:device` and `bus:device.function`.
fn parse_bus_id(id: &str) -> Option<[u32; 4]> {
    let (place, function) = id.split_once('.').unwrap_or((id, "0"));
    let mut parts: Vec<&str> = place.split(':').collect();
    if parts.len() == 2 && place.len() < id.len() {
        parts.insert(0, "0");
    }
    parts.push(function);
    let numbers = parts.iter().map(|part| u32::from_str_radix(part, 16).ok());
    numbers.collect::<Option<Vec<u32>>>()?.try_into().ok()
}

pub(super) fn find_by_bus_id(wanted: &str) -> Result<CUdevice> {
    let wanted = parse_bus_id(wanted).ok_or(Status::INVALID_VALUE)?;
    for device in 0..count()?.cast_signed() {
        if parse_bus_id(&snapshot(device)?.pci_bus_id) == Some(wanted) {
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
        return except_fault(first_session()?.check());
    }
    if count()? == 0 {
        return Err(Status::NO_DEVICE);
    }
    INITIALIZED.store(true, Ordering::Release);
    Ok(())
}

pub(crate) fn cuDriverGetVersion(version: Out<'_, c_int>) -> Result {
    version.present()?;
    version.put(driver_version())
}

pub(crate) fn cuDeviceGet(device: Out<'_, CUdevice>, number: c_int) -> Result {
    ordinal(number)?;
    device.put(number)
}

pub(crate) fn cuDeviceGetCount(number: Out<'_, c_int>) -> Result {
    number.put(count()?.cast_signed())
}

pub(crate) unsafe fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> Result {
    // SAFETY: `name` is null or writable, as the caller promises.
    unsafe { put_text(name, length, &snapshot(device)?.name) }
}

pub(crate) fn cuDeviceGetUuid(uuid: Out<'_, CUuuid>, device: CUdevice) -> Result {
    let bytes = snapshot(device)?.uuid;
    uuid.put(CUuuid { bytes })
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
    major.put(
        snapshot
            .attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.cast_unsigned())
            .unwrap_or(0),
    )?;
    minor.put(
        snapshot
            .attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR.cast_unsigned())
            .unwrap_or(0),
    )
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(
    id: *mut c_char,
    length: c_int,
    device: CUdevice,
) -> Result {
    let name = &snapshot(device)?.pci_bus_id;
    // SAFETY: `id` is null or writable, as the caller promises.
    unsafe { put_text(id, length, name) }?;
    // A name that does not fit is cut, and reported.
    if usize::try_from(length).is_ok_and(|room| room > name.len()) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(crate) fn cuDeviceCanAccessPeer(
    can: Out<'_, c_int>,
    device: CUdevice,
    peer: CUdevice,
) -> Result {
    let [_, access, ..] = peer_attributes(ordinal(device)?, ordinal(peer)?);
    can.put(access)
}

/// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of a device's access to another; 0 for what the
/// hosts do not report.
fn peer_attributes(device: u32, peer: u32) -> [c_int; 5] {
    const ARRAYS: usize = CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED as usize - 1;
    let query = || session(device)?.peer_attributes(session(peer)?);
    let mut attributes = match device == peer {
        true => [0; 5],
        false => query().unwrap_or_default(),
    };
    // An array belongs to the session that created it.
    attributes[ARRAYS] = 0;
    attributes.map(|value| c_int::try_from(value).unwrap_or(0))
}

pub(crate) fn cuDeviceGetP2PAttribute(
    value: Out<'_, c_int>,
    attribute: c_int,
    from: CUdevice,
    to: CUdevice,
) -> Result {
    let (from, to) = (ordinal(from)?, ordinal(to)?);
    if from == to {
        return Err(Status::INVALID_DEVICE);
    }
    if !(1..=5).contains(&attribute) {
        return Err(Status::INVALID_VALUE);
    }
    let attributes = (1..).zip(peer_attributes(from, to));
    let mut wanted = attributes.filter(|(number, _)| *number == attribute);
    value.put(wanted.next().map_or(0, |(_, value)| value))
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    width: Out<'_, usize>,
    format: c_int,
    channels: c_uint,
    device: CUdevice,
) -> Result {
    paragpu_abi::array_element_bytes(format.cast_unsigned(), channels)
        .ok_or(Status::INVALID_VALUE)?;
    // The attribute counts elements, whatever their size.
    let most = snapshot(device)?
        .attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH.cast_unsigned())
        .unwrap_or(0);
    width.put(usize::try_from(most).unwrap_or(0))
}

pub(crate) fn cuDeviceGetExecAffinitySupport(
    value: Out<'_, c_int>,
    _kind: c_int,
    device: CUdevice,
) -> Result {
    ordinal(device)?;
    value.put(0)
}

/// Callbacks for notifications: the handle's number and the device.
static NOTIFIED: Mutex<(usize, Vec<(usize, u32)>)> = Mutex::new((0, Vec::new()));

// The only notification is that a process exceeds its memory budget. A virtual
// GPU's budget is a fixed limit on allocations, so the callback is never called.
pub(crate) fn cuDeviceRegisterAsyncNotification(
    device: CUdevice,
    callback: CUasyncCallback,
    _data: *mut c_void,
    handle: Out<'_, CUasyncCallbackHandle>,
) -> Result {
    let ordinal = ordinal(device)?;
    let handle = handle.present()?;
    if callback.is_none() {
        return Err(Status::INVALID_VALUE);
    }
    let mut all = NOTIFIED.lock();
    all.0 += 1;
    let number = all.0;
    all.1.push((number, ordinal));
    handle.put(std::ptr::without_provenance_mut(number))
}

pub(crate) fn cuDeviceUnregisterAsyncNotification(
    device: CUdevice,
    handle: CUasyncCallbackHandle,
) -> Result {
    // The handle may belong to another device.
    let ordinal = ordinal(device).map_err(|_| Status::INVALID_VALUE)?;
    let mut all = NOTIFIED.lock();
    let before = all.1.len();
    all.1.retain(|known| *known != (handle.addr(), ordinal));
    if all.1.len() < before {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn bus_ids_have_three_forms() {
        for (id, parsed) in [
            ("0000:3b:00.0", Some([0, 0x3b, 0, 0])),
            ("1:3B:1f.7", Some([1, 0x3b, 0x1f, 7])),
            ("00000001:3b:02", Some([1, 0x3b, 2, 0])),
            ("3b:02.1", Some([0, 0x3b, 2, 1])),
            ("3b:02", None),
            ("3b", None),
            ("0.3b.02", None),
            ("0:0:3b:02.0", None),
            ("0:3b:02.", None),
            ("", None),
        ] {
            assert_eq!(parse_bus_id(id), parsed, "{id}");
        }
    }

    #[test]
    fn a_silent_host_is_waited_for_once() {
        let failed = |kind: ErrorKind| Error::NoAnswer {
            place: "tcp host:1".into(),
            advice: "is it there?",
            source: Box::new(std::io::Error::from(kind)),
        };
        for (kind, expected) in [(ErrorKind::TimedOut, 1), (ErrorKind::ConnectionRefused, 2)] {
            let attempts = Attempts {
                timeout: Mutex::new(None),
            };
            let made = Cell::new(0);
            for _ in 0..2 {
                let outcome = attempts.make(|| {
                    made.set(made.get() + 1);
                    Err::<(), _>(failed(kind))
                });
                assert_eq!(outcome, Err(Status::NO_DEVICE));
            }
            assert_eq!(made.get(), expected, "{kind:?}");
        }
    }
}
