//! The session's GPU, with pooled events by which the session learns which work is complete.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_EVENT_DISABLE_TIMING,
};
use paragpu_communicator::Window;
use paragpu_control::worker;
use paragpu_device::{Device, Error, EventId, Result, Snapshot, StreamId, Work};
use paragpu_protocol::codec::{Bytes, Text, encode_all};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::types::{DeviceSnapshot, encode_pairs};

use super::fences::{Fence, Fences};
use super::lanes::{Lanes, Place};

/// Maximum number of unused events to keep.
const MAX_FREE_MARKS: usize = 16 * 1024;
const COMPUTE_CAPABILITY_MAJOR: u32 = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.cast_unsigned();
const COMPUTE_CAPABILITY_MINOR: u32 = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR.cast_unsigned();

/// The GPU that the session was opened on.
///
/// Methods of the device first wait for the launches in the [lanes](super::lanes). The
/// methods here that need not wait say so.
pub(crate) struct Gpu {
    /// Before the device, to which its work refers.
    lanes: Lanes,
    device: Box<dyn Device>,
    /// Unused events.
    free_marks: Vec<EventId>,
    fences: Fences,
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
            lanes: Lanes::new(),
            device,
            free_marks: Vec::new(),
            fences: Fences::default(),
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
        self.device.identity()
    }

    /// The guest's address ranges for it.
    pub(crate) fn regions(&self) -> Regions {
        self.regions
    }

    /// The device, once all launches in lanes are submitted.
    pub(crate) fn device(&mut self) -> &mut (dyn Device + 'static) {
        self.lanes.settle();
        self.device.as_mut()
    }

    /// Submits a launch, perhaps from a lane. If many threads launch, they are asked in `window`
    /// to say who they are, and told what is submitted.
    pub(crate) fn launch(
        &mut self,
        work: &Work<'_>,
        stream: StreamId,
        place: Place,
        window: Option<&Arc<Window>>,
    ) -> Result<()> {
        self.lanes.tell_in(window);
        if let Work::Launch(launch) = work
            && self.lanes.are_worthwhile(place)
            && let Some(target) = self.device.launch_target(launch.function, stream)?
            && self.lanes.give(place, stream, target, launch)
        {
            return Ok(());
        }
        self.submit_launch(work, stream, place)
    }

    /// Submits a launch of a session whose launches are limited.
    pub(crate) fn launch_paced(
        &mut self,
        work: &Work<'_>,
        stream: StreamId,
        place: Place,
    ) -> Result<()> {
        self.lanes.rest();
        self.submit_launch(work, stream, place)
    }

    /// Submits a launch from this thread.
    fn submit_launch(&mut self, work: &Work<'_>, stream: StreamId, place: Place) -> Result<()> {
        self.device().submit(work, stream)?;
        self.lanes.tell(place);
        Ok(())
    }

    /// Tells a thread not to wait for its launch, which failed.
    pub(crate) fn tell(&self, place: Place) {
        self.lanes.tell(place);
    }

    /// Takes the first error of a launch in a lane.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.lanes.take_failure()
    }

    /// Queries an event without waiting for the lanes, which record only marks.
    pub(crate) fn event_query(&mut self, event: EventId) -> Result<bool> {
        // The device would answer for an earlier record.
        if self.lanes.are_to_record(event) {
            return Ok(false);
        }
        self.device.event_query(event)
    }

    /// Uses `count` lanes for all launches.
    #[cfg(test)]
    pub(crate) fn always_use_lanes(&mut self, count: usize) {
        self.lanes = Lanes::always(count);
    }

    /// Has an event watched, without waiting for the lanes.
    pub(crate) fn event_watch(
        &mut self,
        event: EventId,
        reached: Box<dyn FnOnce() + Send>,
    ) -> Result<bool> {
        self.device.event_watch(event, reached)
    }

    /// Records an event behind the work given to `stream` so far, perhaps from a lane.
    pub(crate) fn mark(&mut self, stream: StreamId) -> Result<EventId> {
        let event = match self.free_marks.pop() {
            Some(event) => event,
            None => self.device.event_create(CU_EVENT_DISABLE_TIMING)?,
        };
        // A mark that was abandoned may still be recorded.
        if self.lanes.have(stream)
            && !self.lanes.are_to_record(event)
            && let Some(record) = self.device.recording(event, stream)?
            && self.lanes.give_mark(stream, event, record)
        {
            return Ok(event);
        }
        match self.device().submit(&Work::EventRecord(event), stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.free_marks.push(event);
                Err(error)
            }
        }
    }

    /// Returns a mark to the pool.
    pub(crate) fn free_mark(&mut self, mark: EventId) {
        if self.free_marks.len() < MAX_FREE_MARKS {
            self.free_marks.push(mark);
        } else {
            // It fails only with the context, which ends with all its events.
            let _ = self.device().event_destroy(mark);
        }
    }

    /// A fence behind `marks`: [`Fences::add`].
    pub(crate) fn fence(&mut self, marks: Vec<(EventId, StreamId)>) -> Result<Fence> {
        let mut fences = self.take_fences();
        let fence = fences.add(marks, self);
        self.keep_fences(fences);
        fence
    }

    /// Takes the fences while they query marks. [`keep_fences`](Self::keep_fences) follows.
    pub(super) fn take_fences(&mut self) -> Fences {
        std::mem::take(&mut self.fences)
    }

    pub(super) fn keep_fences(&mut self, fences: Fences) {
        self.fences = fences;
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
        self.device()
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
