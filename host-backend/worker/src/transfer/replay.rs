//! Recreates objects on another device from the calls that [`crate::live`] records.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Instant;

use paragpu_device::{Error, HEAP, StreamId};
use paragpu_protocol::call::{Effect, WireCall as _};
use paragpu_protocol::codec::{Bytes, DecodeError, Field, Reader, decode_all};
use paragpu_protocol::handle::{GraphExecHandle, ObjectKind};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    CtxSetLimit, EventRecord, GraphInstantiate, HostMap, MemMap, ShadowCreate, ShadowJoin,
};

use super::lack::Lack;
use super::shared::{Delivery, Mapping, Offered, Peers};
use super::sharing::Parts;
use super::state::{StateError, device};
use super::stop::Filling;
use super::survey;
use crate::calls::Handle as _;
use crate::calls::{self, destroying};
use crate::context::MALLOC_HEAP_SIZE;
use crate::error::{Fault, Outcome};
use crate::handles::HandleMap;
use crate::live::{Change, Name, Recorded};
use crate::session::Session;
use crate::session::gpu::Gpu;
use crate::session::host_memory::Pinned;
use crate::session::link::At;
use crate::session::objects::Objects;

paragpu_protocol::record! {
    /// A call that creates or changes an object, and the required result.
    Entry<'a> {
        /// The call's number.
        number: u16,
        /// The value of a texture or surface object, the lowest address of a
        /// module's variables, or 0.
        value: u64,
        /// For a module: a digest of its variables' names, addresses and sizes.
        digest: u64,
        /// The call's payload.
        payload: Bytes<'a>,
    }
}

/// An [`Entry`] that owns its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    call: Recorded,
    value: u64,
    digest: u64,
}

/// Error for fewer descriptors than mappings.
const TOO_FEW: StateError = StateError::Order("a descriptor of a mapping is missing");

/// Bytes of entries after which a record is full.
pub(crate) const FULL: usize = 256 * 1024;

impl Item {
    /// A call whose object may have any value.
    #[must_use]
    pub fn new(call: Recorded) -> Self {
        Self {
            call,
            value: 0,
            digest: 0,
        }
    }

    /// Appends the item to a record's payload.
    pub fn put(&self, out: &mut Vec<u8>) {
        let entry = Entry {
            number: self.call.number,
            value: self.value,
            digest: self.digest,
            payload: Bytes(&self.call.payload),
        };
        let tail = entry.encode(out);
        out.extend_from_slice(tail);
    }

    /// Reads a record's items.
    ///
    /// # Errors
    /// [`StateError::Payload`].
    pub fn take(payload: &[u8], items: &mut Vec<Self>) -> Result<(), StateError> {
        let mut reader = Reader::new(payload);
        while reader.remaining() > 0 {
            let entry: Entry<'_> = reader.field()?;
            items.push(Self {
                call: Recorded::new(entry.number, entry.payload.0),
                value: entry.value,
                digest: entry.digest,
            });
        }
        Ok(())
    }

    /// The call, if it maps memory of the session's own.
    pub(super) fn mapping(&self) -> Result<Option<MemMap>, StateError> {
        match self.call.number == MemMap::INFO.number {
            true => Ok(Some(decode_all(&self.call.payload)?)),
            false => Ok(None),
        }
    }
}

pub(super) fn refused<T>(outcome: Outcome<T>) -> Result<T, StateError> {
    outcome.map_err(|fault| {
        StateError::Impossible(match fault {
            Fault::Call(error) => error.to_string(),
            Fault::End(end) => end.to_string(),
            Fault::Stall => "the device has no staging memory".into(),
        })
    })
}

/// Adds to the error of a full device how much of its memory is free.
fn with_memory(gpu: &mut Gpu, mut error: Error) -> Error {
    if error.status == Status::OUT_OF_MEMORY
        && error.detail.is_empty()
        && let Ok(memory) = gpu.memory_info()
    {
        let (free, total) = (memory.free, memory.total);
        error.detail = format!("{free} of the {total} bytes of its memory are free");
    }
    error
}

/// As [`refused`], with what [`with_memory`] adds.
fn refused_by<T>(gpu: &mut Gpu, outcome: Outcome<T>) -> Result<T, StateError> {
    refused(outcome.map_err(|fault| match fault {
        Fault::Call(error) => Fault::Call(with_memory(gpu, error)),
        other => other,
    }))
}

/// Names the call that the device could not execute.
fn unexecuted(name: &str, error: &StateError) -> StateError {
    StateError::Impossible(format!(
        "this GPU cannot execute {name} for the session: {error}"
    ))
}

/// Whether an object of this kind must have the same value on every device.
fn is_placed(kind: ObjectKind) -> bool {
    matches!(
        kind,
        ObjectKind::Texture | ObjectKind::Surface | ObjectKind::Module
    )
}

/// Whether the object of a call is pinned memory or may refer to it.
fn may_need_window(change: Option<&Change>) -> bool {
    let Some(effect @ (Effect::Creates(kind, _) | Effect::Changes(kind, _))) =
        change.map(|change| change.effect)
    else {
        return false;
    };
    if is_part_of_window(effect) {
        return true;
    }
    matches!(
        kind,
        ObjectKind::HostMemory | ObjectKind::GraphExec | ObjectKind::Texture | ObjectKind::Surface
    )
}

/// Whether a call makes memory a part of the window.
fn is_part_of_window(effect: Effect) -> bool {
    matches!(
        effect,
        Effect::Creates(ObjectKind::HostMemory, _) | Effect::Changes(ObjectKind::Shadow, _)
    )
}

/// The object that a call creates.
fn created(change: Option<&Change>) -> Option<Name> {
    match change?.effect {
        Effect::Creates(kind, handle) => Some((kind, handle)),
        _ => None,
    }
}

impl Objects {
    /// The value and digest that must be equal at the destination.
    fn placement(&self, gpu: &mut Gpu, (kind, handle): Name) -> Outcome<(u64, u64)> {
        Ok(match kind {
            ObjectKind::Texture => (self.textures.texture(handle)?, 0),
            ObjectKind::Surface => (self.textures.surface(handle)?, 0),
            ObjectKind::Module => {
                let module = self.modules.id(handle)?;
                let mut variables = gpu.module_variables(module)?;
                variables.sort_unstable();
                let mut hasher = blake3::Hasher::new();
                for variable in &variables {
                    hasher.update(&variable.address.to_le_bytes());
                    hasher.update(&variable.size.to_le_bytes());
                    hasher.update(variable.name.as_bytes());
                }
                let mut digest = [0; 8];
                hasher.finalize_xof().fill(&mut digest);
                let first = variables.first().map_or(0, |variable| variable.address);
                (first, u64::from_le_bytes(digest))
            }
            _ => (0, 0),
        })
    }

    /// The size of a module's heap, if the program changed that of new modules.
    fn heap(&self, gpu: &mut Gpu, (kind, handle): Name) -> Outcome<Option<u64>> {
        if kind != ObjectKind::Module || self.limit(MALLOC_HEAP_SIZE).is_none() {
            return Ok(None);
        }
        let variables = gpu.module_variables(self.modules.id(handle)?)?;
        let heap = variables.into_iter().find(|variable| variable.name == HEAP);
        Ok(heap.map(|heap| heap.size))
    }

    /// Checks that an object has the same value as at the source.
    fn check_value(&self, gpu: &mut Gpu, name: Name, item: &Item) -> Result<(), StateError> {
        let (value, digest) = refused(self.placement(gpu, name))?;
        if (value, digest) == (item.value, item.digest) {
            return Ok(());
        }
        let kind = match name.0 {
            ObjectKind::Module => "module",
            ObjectKind::Texture => "texture object",
            _ => "surface object",
        };
        let differs = match value == item.value {
            // The first variable is at the same address.
            true => "has other variables, or of other sizes, here than at the source".to_owned(),
            false => format!(
                "is at {value:#x} here and at {:#x} at the source",
                item.value
            ),
        };
        Err(StateError::Impossible(format!(
            "{kind} {:#x} of the session {differs}",
            name.1
        )))
    }
}

impl Session {
    /// The session's objects, to be recreated elsewhere.
    ///
    /// # Errors
    /// [`StateError::Impossible`] if the device cannot locate a module's variables.
    pub fn items(&mut self) -> Result<Vec<Item>, StateError> {
        match self.sharing.move_blocker() {
            Some(reason) => Err(StateError::Impossible(reason)),
            None => self.items_together(),
        }
    }

    /// As [`items`](Self::items), if the sessions with which it shares memory are
    /// recreated with it.
    ///
    /// # Errors
    /// As [`items`](Self::items).
    pub(super) fn items_together(&mut self) -> Result<Vec<Item>, StateError> {
        if let Some(reason) = self.host.move_blocker() {
            return Err(StateError::Impossible(reason));
        }
        let mut items = Vec::with_capacity(self.objects.live.len());
        let mut placed = Vec::new();
        for (name, creates, call) in self.objects.live.in_order() {
            if creates && let Some(value) = refused(self.objects.heap(&mut self.gpu, name))? {
                let limit = MALLOC_HEAP_SIZE;
                items.push(Item::new(Recorded::of(&CtxSetLimit { limit, value })));
            }
            if creates && is_placed(name.0) {
                placed.push((items.len(), name));
            }
            items.push(Item::new(call.clone()));
        }
        for (at, name) in placed {
            let (value, digest) = refused(self.objects.placement(&mut self.gpu, name))?;
            if let Some(item) = items.get_mut(at) {
                (item.value, item.digest) = (value, digest);
            }
        }
        Ok(items)
    }

    /// Makes the session's objects equal to `items`: destroys those that are not in it
    /// and creates the missing ones, in order. Returns false if there is pinned memory
    /// and no window yet. Pinned memory then waits for the window, as do graphs, whose
    /// nodes may copy from and to it, and textures and surfaces, whose values depend on
    /// their order.
    ///
    /// # Errors
    /// [`StateError::Impossible`] with one sentence if the device fails, or a value
    /// or an address differs.
    pub fn replace_objects(&mut self, items: &[Item]) -> Result<bool, StateError> {
        if !self.objects.live.is_empty() {
            self.destroy_surplus(items)?;
        }
        let calls = items
            .iter()
            .map(|item| Ok((item, item.call.change()?)))
            .collect::<Result<Vec<_>, StateError>>()?;
        let is_pinned = |change: &Option<Change>| {
            let effect = change.as_ref().map(|change| change.effect);
            effect.is_some_and(is_part_of_window)
        };
        let waits =
            self.host.window().is_none() && calls.iter().any(|(_, change)| is_pinned(change));
        let began = Instant::now();
        let mut modules = Vec::new();
        for (item, change) in &calls {
            if waits && may_need_window(change.as_ref()) {
                continue;
            }
            let made = self.make(item, change.as_ref())?;
            if let Some(name @ (ObjectKind::Module, _)) = made {
                modules.push((name, *item));
            } else if let Some(name) = made.filter(|name| is_placed(name.0)) {
                self.objects.check_value(&mut self.gpu, name, item)?;
            }
        }
        self.recreate_dangling()?;
        let handles: Vec<u64> = modules.iter().map(|((_, handle), _)| *handle).collect();
        let made = began.elapsed();
        survey::run(self.objects.surveys(&mut self.gpu, &handles));
        let searched = began.elapsed() - made;
        modules
            .into_iter()
            .try_for_each(|(name, item)| self.objects.check_value(&mut self.gpu, name, item))?;
        let modules = handles.len();
        tracing::debug!(
            objects = calls.len(),
            modules,
            ?made,
            ?searched,
            "objects replaced"
        );
        Ok(!waits)
    }

    /// Makes the session's objects equal to `items` of a session that has left its window. Its
    /// pinned memory becomes shadows at the same addresses, as that of a session that never had a
    /// window, and the guest will send the contents.
    ///
    /// # Errors
    /// As [`replace_objects`](Self::replace_objects).
    pub(crate) fn leave_window(&mut self, items: &[Item]) -> Result<(), StateError> {
        let (mut kept, mut joined) = (Vec::with_capacity(items.len()), Vec::new());
        for item in items {
            if item.call.number == HostMap::INFO.number {
                let HostMap { offset, size } = decode_all(&item.call.payload)?;
                let address = self.host.shadow_of_pin(offset.0);
                kept.push(Item::new(Recorded::of(&ShadowCreate { address, size })));
            } else if item.call.number == ShadowJoin::INFO.number {
                let join: ShadowJoin = decode_all(&item.call.payload)?;
                joined.push(join.address);
            } else {
                kept.push(item.clone());
            }
        }
        self.replace_objects(&kept)?;
        joined
            .into_iter()
            .for_each(|address| self.host.clear_shadow(address));
        self.host.set_pinned(Pinned::Guest);
        Ok(())
    }

    /// Takes the memory of the received objects that the source hands over: maps it, or with
    /// `peers` opens it to copy from. Returns the delivery of each mapping.
    ///
    /// # Errors
    /// [`StateError::Order`] for memory that is not among them, or a wrong
    /// number of descriptors; [`StateError::Impossible`].
    pub(super) fn take_shared(
        &mut self,
        filling: &mut Filling,
        mappings: &[Mapping],
        descriptors: Vec<OwnedFd>,
        mut peers: Option<&mut Peers>,
    ) -> Result<Vec<u8>, StateError> {
        match peers {
            // Memory of another device uses addresses that the driver chooses. Modules
            // are loaded first, as they were at the source.
            Some(_) => self.recreate(filling)?,
            None => self.destroy_surplus(&filling.items)?,
        }
        let mut maps = HandleMap::default();
        for item in &filling.items {
            if let Some(map) = item.mapping()? {
                maps.insert((map.address.0, map.size), (item, map.change()));
            }
        }
        let others = filling.sharing.as_ref();
        let others = others.map(|parts| (parts, parts.room_deadline()));
        let mut descriptors = descriptors.into_iter();
        let mut taken = Vec::with_capacity(mappings.len());
        let mut unmapped = HashSet::new();
        for mapping in mappings {
            let (address, size) = (mapping.address, mapping.size);
            let Some((item, change)) = maps.get(&(address, size)) else {
                return Err(StateError::Order("memory that is not the session's"));
            };
            let offered = mapping.offered()?;
            let descriptor = match offered {
                Offered::Memory => Some(descriptors.next().ok_or(TOO_FEW)?),
                Offered::Contents | Offered::Nothing => None,
            };
            // The session's own memory is created with the other objects.
            if let Some(peers) = &mut peers {
                let delivery = match peers.open(self, address, size, descriptor)? {
                    true => Delivery::Fetched,
                    false => Delivery::Sent,
                };
                taken.push(delivery as u8);
                continue;
            }
            let there = self.memory.arena().size(address);
            let more = size.saturating_sub(there.unwrap_or(0));
            let is_absent = match (offered, others) {
                (Offered::Nothing, _) => {
                    unmapped.insert(address);
                    true
                }
                (_, Some((parts, deadline))) => {
                    parts.await_room(&self.memory, more, deadline)?.is_some()
                }
                (_, None) => false,
            };
            if is_absent {
                // It is other memory.
                if there.is_some() {
                    self.destroy((ObjectKind::Memory, address))?;
                }
                taken.push(Delivery::Absent as u8);
                continue;
            }
            // They are recreated with the other objects.
            let (memory, live) = (&mut self.memory, &mut self.objects.live);
            refused(memory.end_aliases_of(&mut self.gpu, live, &mut self.replies.link, address))?;
            let mapped = self.memory.import(
                &mut self.gpu,
                &mut self.replies.link,
                address,
                size,
                descriptor,
            );
            let mapped = refused_by(&mut self.gpu, mapped)
                .map_err(|error| unexecuted(MemMap::INFO.name, &error))?;
            let delivery = if mapped {
                Delivery::Taken
            } else {
                Delivery::Sent
            };
            taken.push(delivery as u8);
            let live = &mut self.objects.live;
            if let Some(change) = change
                && !live.knows(change, &item.call)
            {
                refused(live.adopt(change, &item.call))?;
            }
        }
        filling.forget_memory(&unmapped)?;
        Ok(taken)
    }

    /// Maps the memory among `items`, before the other objects. Returns what it lacks for that.
    pub(super) fn map_memory(
        &mut self,
        items: &[Item],
        parts: &Parts,
    ) -> Result<Option<Lack>, StateError> {
        self.destroy_surplus(items)?;
        let deadline = parts.room_deadline();
        for item in items {
            let Some(map) = item.mapping()? else {
                continue;
            };
            if !self.memory.arena().is_live(map.address.0)
                && let Some(lack) = parts.await_room(&self.memory, map.size, deadline)?
            {
                return Ok(Some(lack));
            }
            self.make(item, item.call.change()?.as_ref())?;
        }
        Ok(None)
    }

    /// Destroys objects that are not in `items`, or were created differently.
    fn destroy_surplus(&mut self, items: &[Item]) -> Result<(), StateError> {
        let mut wanted: HandleMap<Name, &Recorded> = HandleMap::default();
        for item in items {
            let change = item.call.change()?;
            if let Some(name) = created(change.as_ref()) {
                wanted.insert(name, &item.call);
            }
        }
        let surplus: Vec<Name> = self
            .objects
            .live
            .in_order()
            .filter(|(name, creates, call)| *creates && wanted.get(name) != Some(call))
            .map(|(name, _, _)| name)
            .collect();
        surplus
            .into_iter()
            .rev()
            .try_for_each(|name| self.destroy(name))
    }

    /// Lets go of memory that was handed over, and of all that is kept for reuse.
    ///
    /// # Errors
    /// [`StateError::Impossible`] if the session does not have it.
    pub(super) fn let_go(
        &mut self,
        mut addresses: impl Iterator<Item = u64>,
    ) -> Result<(), StateError> {
        // The device frees memory behind all work. Here that is a few copies.
        while !device(self.gpu.context_query())? {
            std::thread::yield_now();
        }
        addresses.try_for_each(|address| self.destroy((ObjectKind::Memory, address)))?;
        let (gpu, link) = (&mut self.gpu, &mut self.replies.link);
        refused(self.memory.unmap_idle(gpu, link))
    }

    fn destroy(&mut self, name: Name) -> Result<(), StateError> {
        match destroying(name) {
            Some(call) => self.perform(&call),
            // It is destroyed with its parent.
            None => Ok(()),
        }
    }

    /// Executes the call unless it is already recorded. Returns the object that it
    /// created.
    fn make(&mut self, item: &Item, change: Option<&Change>) -> Result<Option<Name>, StateError> {
        let live = &mut self.objects.live;
        if change.is_some_and(|change| live.knows(change, &item.call)) {
            return Ok(None);
        }
        if item.call.number == EventRecord::INFO.number {
            // The recorded work is complete, and its stream may be gone.
            let record: EventRecord = decode_all(&item.call.payload)?;
            let event = refused(self.objects.events.id(record.event))?;
            let recorded = device(self.gpu.event_record(event, StreamId::LEGACY));
            recorded.map_err(|error| unexecuted(EventRecord::INFO.name, &error))?;
            self.objects.live.note(&item.call)?;
            return Ok(None);
        }
        if item.call.number == ShadowJoin::INFO.number {
            let join: ShadowJoin = decode_all(&item.call.payload)?;
            // The contents are in the window.
            refused(self.host.join(&mut self.gpu, &join, false))?;
            self.objects.live.note(&item.call)?;
            return Ok(None);
        }
        if let Some(Effect::Changes(ObjectKind::GraphExec, graph)) = change.map(|it| it.effect) {
            if self.objects.graphs.is_dangling(graph) || self.perform(&item.call).is_err() {
                // `recreate_dangling` follows.
                self.objects.live.note(&item.call)?;
                let graphs = &mut self.objects.graphs;
                refused(graphs.leave_dangling(&mut self.gpu, graph, 0, 0))?;
            }
            return Ok(None);
        }
        let made = created(change);
        if made.is_some_and(|name| is_placed(name.0)) && item.value != 0 {
            self.gpu.prefer(item.value);
        }
        if !self.recreate_stale(&item.call)? {
            self.perform(&item.call)?;
        }
        Ok(made)
    }

    /// Creates the graphs that could not be created call by call. Those that use what the program has
    /// destroyed are left dangling.
    fn recreate_dangling(&mut self) -> Result<(), StateError> {
        let graphs: Vec<u64> = self.objects.live.names(ObjectKind::GraphExec).collect();
        for graph in graphs {
            if !self.objects.graphs.is_dangling(graph) {
                continue;
            }
            let graph = GraphExecHandle(graph);
            match self.objects.graph_recreate(&mut self.gpu, graph) {
                Err(Fault::Call(error))
                    if matches!(error.status, Status::INVALID_HANDLE | Status::INVALID_VALUE) =>
                {
                    tracing::debug!(%error, graph = graph.0, "a graph dangles");
                }
                recreated => refused_by(&mut self.gpu, recreated)
                    .map_err(|error| unexecuted(GraphInstantiate::INFO.name, &error))?,
            }
        }
        Ok(())
    }

    /// Executes a call for which no guest thread waits.
    pub(crate) fn perform(&mut self, call: &Recorded) -> Result<(), StateError> {
        let number = call.number;
        let Some(handler) = calls::handler(number) else {
            return Err(DecodeError::UnknownCall(number).into());
        };
        let at = At {
            slot: 0,
            call: number,
        };
        let earlier = self.replies.errors.replace_deferred(None);
        let done = (handler.execute)(self, at, &call.payload);
        let done = refused_by(&mut self.gpu, done);
        let failed = self.replies.errors.replace_deferred(earlier);
        let failed = match (done, failed) {
            (Ok(true), None) => return Ok(()),
            (Err(error), _) => error,
            (_, Some(failed)) => {
                let error = Error::new(failed.status, failed.detail);
                StateError::Impossible(with_memory(&mut self.gpu, error).to_string())
            }
            (Ok(false), None) => StateError::Impossible("it would have to wait".into()),
        };
        Err(unexecuted(handler.info.name, &failed))
    }
}
