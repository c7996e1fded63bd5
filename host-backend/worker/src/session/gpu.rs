//! The session's GPU, with pooled events and fences that tell the session which
//! work is complete.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use paragpu_control::worker;
use paragpu_device::{Device, Error, EventId, Result, Snapshot, StreamId, Work};
use paragpu_protocol::codec::{Bytes, Text, encode_all};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::types::{DeviceSnapshot, encode_pairs};

use super::lanes::Lanes;

/// CU_EVENT_DISABLE_TIMING: the cheapest event.
const UNTIMED: u32 = 2;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;

/// The GPU that the session was opened on.
///
/// Calls of the device itself first wait for the work in the [lanes](super::lanes).
/// The methods here are those that need not wait.
pub(crate) struct Gpu {
    device: Box<dyn Device>,
    lanes: Lanes,
    /// Unused events.
    free_marks: Vec<EventId>,
    /// The encoded reply to SnapshotDevice.
    snapshot: Vec<u8>,
    ordinal: u32,
    regions: Regions,
    architecture: Option<u32>,
}

impl Gpu {
    /// The guest's device `ordinal`, opened with its `regions`.
    pub(crate) fn new(
        device: Box<dyn Device>,
        snapshot: &Snapshot,
        ordinal: u32,
        regions: Regions,
    ) -> Self {
        Self {
            device,
            lanes: Lanes::none(),
            free_marks: Vec::new(),
            snapshot: encode_snapshot(snapshot),
            ordinal,
            regions,
            architecture: architecture(snapshot),
        }
    }

    /// Its compute capability, times ten.
    pub(crate) fn architecture(&self) -> Option<u32> {
        self.architecture
    }

    /// The encoded reply to SnapshotDevice.
    pub(crate) fn snapshot(&self) -> &[u8] {
        &self.snapshot
    }

    /// The guest's ordinal of it.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Identifies the device that holds the session's memory.
    pub(crate) fn domain(&self) -> [u8; 16] {
        let ordinal = u128::from(self.ordinal);
        self.memory_domain().unwrap_or(ordinal.to_le_bytes())
    }

    /// The guest's address ranges for it.
    pub(crate) fn regions(&self) -> Regions {
        self.regions
    }

    /// The device, once all lanes are empty.
    pub(crate) fn device(&mut self) -> &mut dyn Device {
        self.settled()
    }

    /// Waits until the lanes are empty.
    fn settled(&mut self) -> &mut (dyn Device + 'static) {
        self.lanes.settle();
        self.device.as_mut()
    }

    /// Sends all launches to `count` lanes.
    #[cfg(test)]
    pub(crate) fn always_use_lanes(&mut self, count: usize) {
        self.lanes = Lanes::always(count);
    }

    /// Notes whether more calls had arrived before the current one was executed.
    pub(crate) fn set_pressed(&mut self, is_pressed: bool) {
        self.lanes.set_pressed(is_pressed);
    }

    /// Submits a launch or the record of an event to a stream, possibly through a
    /// lane.
    pub(crate) fn submit_by_lane(&mut self, work: &Work<'_>, stream: StreamId) -> Result<()> {
        if self.lanes.take(stream)
            && let Some(deferred) = self.device.defer(work, stream)?
        {
            let event = match work {
                Work::EventRecord(event) => Some(*event),
                _ => None,
            };
            return match self.lanes.give(stream, event, deferred) {
                Ok(()) => Ok(()),
                Err(deferred) => {
                    self.lanes.settle();
                    deferred()
                }
            };
        }
        self.settled().submit(work, stream)
    }

    /// Takes the first error of work that a lane submitted.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.lanes.take_failure()
    }

    /// [`StreamDevice::stream_query`](paragpu_device::StreamDevice).
    pub(crate) fn stream_query(&mut self, stream: StreamId) -> Result<bool> {
        if self.lanes.has(stream) {
            return Ok(false);
        }
        self.device.stream_query(stream)
    }

    /// [`StreamDevice::stream_doze`](paragpu_device::StreamDevice).
    pub(crate) fn stream_doze(&mut self, stream: StreamId, timeout: Duration) -> Result<()> {
        self.device.stream_doze(stream, timeout)
    }

    /// [`EventDevice::event_query`](paragpu_device::EventDevice).
    pub(crate) fn event_query(&mut self, event: EventId) -> Result<bool> {
        if self.lanes.has_record(event) {
            return Ok(false);
        }
        self.device.event_query(event)
    }

    /// Records an event behind the work submitted to `stream` so far.
    pub(crate) fn mark(&mut self, stream: StreamId) -> Result<EventId> {
        let event = match self.free_marks.pop() {
            Some(event) => event,
            None => self.device.event_create(UNTIMED)?,
        };
        let record = Work::EventRecord(event);
        let recorded = match self.lanes.has(stream) {
            true => self.submit_by_lane(&record, stream),
            false => self.device.submit(&record, stream),
        };
        match recorded {
            Ok(()) => Ok(event),
            Err(error) => {
                self.free_marks.push(event);
                Err(error)
            }
        }
    }

    /// Returns a mark to the pool.
    pub(crate) fn free_mark(&mut self, mark: EventId) {
        self.free_marks.push(mark);
    }
}

/// The properties of a GPU that the daemon shows.
pub(crate) fn facts(snapshot: &Snapshot) -> worker::Gpu {
    let uuid: String = snapshot
        .uuid
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut parts = Vec::new();
    let mut rest = uuid.as_str();
    for length in [8, 4, 4, 4] {
        let (part, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    let (major, minor) = compute_capability(snapshot).unwrap_or_default();
    let cuda = snapshot.driver_version;
    worker::Gpu {
        name: snapshot.name.clone(),
        memory: snapshot.total_memory,
        uuid: format!("GPU-{}", parts.join("-")),
        compute_capability: format!("{major}.{minor}"),
        cuda_version: format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
    }
}

fn compute_capability(snapshot: &Snapshot) -> Option<(u32, u32)> {
    let value = |name| {
        let mut all = snapshot.attributes.iter();
        let (_, value) = all.find(|(attribute, _)| *attribute == name)?;
        u32::try_from(*value).ok()
    };
    value(COMPUTE_CAPABILITY_MAJOR).zip(value(COMPUTE_CAPABILITY_MINOR))
}

fn architecture(snapshot: &Snapshot) -> Option<u32> {
    let (major, minor) = compute_capability(snapshot)?;
    major.checked_mul(10)?.checked_add(minor)
}

impl Deref for Gpu {
    type Target = dyn Device;

    fn deref(&self) -> &(dyn Device + 'static) {
        self.device.as_ref()
    }
}

impl DerefMut for Gpu {
    fn deref_mut(&mut self) -> &mut (dyn Device + 'static) {
        self.settled()
    }
}

/// Is passed once all work that was in flight at its creation is complete.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    marks: Vec<(EventId, StreamId)>,
}

impl Fence {
    /// Adds a mark in a stream.
    pub(crate) fn add(&mut self, mark: EventId, stream: StreamId) {
        self.marks.push((mark, stream));
    }

    /// A stream whose mark is not reached.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.marks.last().map(|(_, stream)| *stream)
    }

    /// Polls the fence.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn passed(&mut self, gpu: &mut Gpu) -> Result<bool> {
        while let Some(&(event, _)) = self.marks.last() {
            if !gpu.event_query(event)? {
                return Ok(false);
            }
            gpu.free_mark(event);
            self.marks.pop();
        }
        Ok(true)
    }

    /// Returns its events to the pool.
    pub(crate) fn abandon(self, gpu: &mut Gpu) {
        for (event, _) in self.marks {
            gpu.free_mark(event);
        }
    }
}

fn encode_snapshot(snapshot: &Snapshot) -> Vec<u8> {
    let attributes = encode_pairs(
        snapshot
            .attributes
            .iter()
            .map(|(attribute, value)| (*attribute, value.cast_unsigned())),
    );
    encode_all(&wire_snapshot(snapshot, &attributes))
}

/// The snapshot on the wire; `attributes` are its encoded attributes.
pub(crate) fn wire_snapshot<'a>(
    snapshot: &'a Snapshot,
    attributes: &'a [u8],
) -> DeviceSnapshot<'a> {
    DeviceSnapshot {
        driver_version: snapshot.driver_version,
        total_memory: snapshot.total_memory,
        uuid: snapshot.uuid,
        name: Text(&snapshot.name),
        pci_bus_id: Text(&snapshot.pci_bus_id),
        attributes: Bytes(attributes),
    }
}
