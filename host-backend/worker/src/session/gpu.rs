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
/// Whatever is asked of the device itself comes behind the work in the
/// [lanes](super::lanes); the methods here are those that need not.
pub(crate) struct Gpu {
    device: Box<dyn Device>,
    lanes: Lanes,
    /// Events that mark nothing at the moment.
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
            lanes: Lanes::of_host(),
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

    /// The guest's number of it.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Where the guest's addresses of it lie.
    pub(crate) fn regions(&self) -> Regions {
        self.regions
    }

    /// The device behind it.
    pub(crate) fn device(&mut self) -> &mut dyn Device {
        self.settled()
    }

    /// The same, with nothing in the lanes.
    fn settled(&mut self) -> &mut (dyn Device + 'static) {
        self.lanes.settle();
        self.device.as_mut()
    }

    /// All launches go to `count` lanes.
    #[cfg(test)]
    pub(crate) fn always_use_lanes(&mut self, count: usize) {
        self.lanes = Lanes::always(count);
    }

    /// Another call had come before the one that is executed now was, or none.
    pub(crate) fn set_pressed(&mut self, is_pressed: bool) {
        self.lanes.set_pressed(is_pressed);
    }

    /// Gives a launch, or a record of an event, to a stream, maybe by its lane.
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

    /// The first error, since the last question, of work that was given by a
    /// lane.
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

    /// Marks the work given to `stream` so far.
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

    /// The mark is not needed any more.
    pub(crate) fn free_mark(&mut self, mark: EventId) {
        self.free_marks.push(mark);
    }
}

/// What the daemon tells of a GPU.
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

/// Passed once everything that was under way when it was made is over.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    marks: Vec<(EventId, StreamId)>,
}

impl Fence {
    /// Behind a mark in a stream, too.
    pub(crate) fn add(&mut self, mark: EventId, stream: StreamId) {
        self.marks.push((mark, stream));
    }

    /// A stream whose mark is not passed.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.marks.last().map(|(_, stream)| *stream)
    }

    /// Is it passed?
    ///
    /// # Errors
    /// Of work that failed.
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

    /// Gives its events back unpassed.
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

/// The snapshot as it travels; `attributes` are its attributes, encoded.
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
