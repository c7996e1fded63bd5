//! The GPU of a worker, opened before there is a session.

use paragpu_device::{Device, Platform, Snapshot};
use paragpu_protocol::layout::Regions;

use super::Stop;
use crate::arguments::{Arguments, Calls, DeviceKind};
use crate::sys::code_cache;
use crate::{confine, platform};

/// An opened GPU.
pub(super) struct Warm {
    platform: Box<dyn Platform>,
    pub(super) device: Box<dyn Device>,
    pub(super) snapshot: Snapshot,
    pub(super) ordinal: u32,
    pub(super) regions: Regions,
}

/// Opens the GPU and confines the worker: first, if it is a software GPU, whose threads belong to the
/// worker; afterwards, if a driver starts threads and programs of its own.
pub(super) fn open_confined(arguments: &Arguments) -> Result<Warm, Stop> {
    let confine = || confine::begin(arguments.device, arguments.calls, arguments.apart);
    if arguments.device == DeviceKind::Software {
        let _ = confine();
        return warm_up(arguments);
    }
    if let Err(error) = code_cache::reserve() {
        tracing::warn!(%error, "compiled code is not cached");
    }
    if arguments.calls == Calls::Learn {
        confine::learn();
    }
    let warm = warm_up(arguments)?;
    let _ = confine();
    tracing::debug!("the GPU is open");
    Ok(warm)
}

/// Opens the GPU as far as possible without a session.
fn warm_up(arguments: &Arguments) -> Result<Warm, Stop> {
    let failed = |error: paragpu_device::Error| {
        Stop::NoDevice(format!(
            "cannot open {}:{}: {error}",
            arguments.device, arguments.index
        ))
    };
    let platform = platform::open(arguments).map_err(failed)?;
    let index = arguments.place();
    let snapshot = platform.snapshot(index).map_err(failed)?;
    let ordinal = arguments.ordinal;
    let regions = Regions::of(ordinal)
        .ok_or_else(|| Stop::Failed(format!("a guest has no device {ordinal}")))?;
    let device = platform.open(index, regions).map_err(failed)?;
    Ok(Warm {
        platform,
        device,
        snapshot,
        ordinal,
        regions,
    })
}

/// Reopens the GPU at other addresses if the guest uses another ordinal.
pub(super) fn prepare(arguments: &Arguments, warm: &mut Warm, ordinal: u32) -> Result<(), String> {
    if ordinal == warm.ordinal {
        return Ok(());
    }
    let regions = Regions::of(ordinal).ok_or_else(|| format!("a guest has no device {ordinal}"))?;
    let failed = |error| format!("cannot open the device: {error}");
    if !warm.device.rehome(regions).map_err(failed)? {
        let opened = warm.platform.open(arguments.place(), regions);
        warm.device = opened.map_err(failed)?;
    }
    (warm.ordinal, warm.regions) = (ordinal, regions);
    Ok(())
}
