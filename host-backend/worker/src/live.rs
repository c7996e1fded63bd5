//! The calls that recreate the session's objects: for each live object, the call that
//! created it and the calls that have changed it. A destroyed object leaves nothing.

use paragpu_protocol::call::{Effect, WireCall};
use paragpu_protocol::codec::DecodeError;
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::status::Status;
use smallvec::SmallVec;

use crate::calls::{self, holds_others};
use crate::error::{Outcome, fail};
use crate::handles::HandleMap;
use crate::session::host_account::Charge;

/// The identity of an object.
pub type Name = (ObjectKind, u64);

/// A call's payload. Most are short enough to be stored inline.
pub type Payload = SmallVec<[u8; 32]>;

/// Number of changes of an object above which a map indexes them.
const FEW: usize = 8;
/// Maximum number of changes of an object other than a graph, whose changes count as its
/// nodes. No call has this many valid keys.
const MOST_CHANGES: usize = 256;
/// Host memory charged for an object, in addition to its payload: the records here, and
/// those of its table and of the device.
const OBJECT: u64 = 384;

/// An encoded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The call's number.
    pub number: u16,
    /// Its payload.
    pub payload: Payload,
}

impl Recorded {
    /// A call with this payload.
    #[must_use]
    pub fn new(number: u16, payload: &[u8]) -> Self {
        Self {
            number,
            payload: Payload::from_slice(payload),
        }
    }

    /// Encodes a call.
    #[must_use]
    pub fn of<'a, C: WireCall<'a>>(call: &C) -> Self {
        let mut payload = Vec::new();
        let tail = call.encode(&mut payload).to_vec();
        payload.extend(tail);
        Self::new(C::INFO.number, &payload)
    }

    /// Its effect on an object.
    ///
    /// # Errors
    /// [`DecodeError`] if it is malformed.
    pub fn change(&self) -> Result<Option<Change>, DecodeError> {
        match calls::handler(self.number) {
            Some(handler) => (handler.change)(&self.payload),
            None => Err(DecodeError::UnknownCall(self.number)),
        }
    }
}

/// The effect of a call on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The effect.
    pub effect: Effect,
    /// The object that a created one cannot outlive.
    pub parent: Option<Name>,
    /// Changes by the same call with the same key replace each other.
    pub key: u32,
}

/// The key of a change: a later change with the same key replaces an earlier one.
type ChangeKey = (u16, u32);

/// The calls that changed an object, without those that were replaced.
#[derive(Debug, Default)]
struct Changes {
    all: Vec<(ChangeKey, Recorded)>,
    /// The index of each, once there are more than a few.
    places: Option<HandleMap<ChangeKey, usize>>,
}

impl Changes {
    fn put(&mut self, key: ChangeKey, number: u16, payload: &[u8]) {
        let place = match &self.places {
            Some(places) => places.get(&key).copied(),
            None => self.all.iter().position(|(other, _)| *other == key),
        };
        if let Some((_, change)) = place.and_then(|place| self.all.get_mut(place)) {
            if *change.payload != *payload {
                change.payload.clear();
                change.payload.extend_from_slice(payload);
            }
            return;
        }
        if let Some(places) = &mut self.places {
            places.insert(key, self.all.len());
        }
        self.all.push((key, Recorded::new(number, payload)));
        if self.all.len() > FEW && self.places.is_none() {
            let places = self.all.iter().enumerate();
            self.places = Some(places.map(|(at, (key, _))| (*key, at)).collect());
        }
    }

    /// Whether the limit of changes is reached, so that a change with a new key is
    /// refused.
    fn is_full(&self, key: ChangeKey) -> bool {
        self.all.len() >= MOST_CHANGES && !self.all.iter().any(|(other, _)| *other == key)
    }

    fn calls(&self) -> impl Iterator<Item = &Recorded> {
        self.all.iter().map(|(_, call)| call)
    }
}

#[derive(Debug)]
struct Object {
    /// Position in the order of creation.
    order: u64,
    created: Recorded,
    /// The object that this one belongs to.
    parent: Option<Name>,
    changes: Changes,
}

impl Object {
    /// Host memory charged for it.
    fn weight(&self) -> u64 {
        weight(self.created.payload.len())
    }
}

/// The live objects of a session.
#[derive(Debug, Default)]
pub struct Live {
    objects: HandleMap<Name, Object>,
    next: u64,
    /// The host memory charged for them; `None` if it is not accounted.
    held: Option<Charge>,
}

/// Host memory charged for an object that a call with this payload creates.
fn weight(payload: usize) -> u64 {
    OBJECT + payload as u64
}

impl Live {
    /// Creates an empty list whose objects are charged to `held`.
    pub(crate) fn counted(held: Charge) -> Self {
        Self {
            held: Some(held),
            ..Self::default()
        }
    }

    /// Charges for the effect that a call with this payload would have.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if the account has no room, `INVALID_VALUE` for a change beyond any
    /// that an object can have.
    pub(crate) fn admit(&mut self, change: &Change, number: u16, payload: usize) -> Outcome<()> {
        match (change.effect, &mut self.held) {
            (Effect::Creates(..), Some(held)) => held.grow(weight(payload)),
            // Without a key there is one change per call.
            (Effect::Changes(kind, handle), _)
                if change.key != 0 && kind != ObjectKind::GraphExec =>
            {
                let object = self.objects.get(&(kind, handle));
                match object.is_some_and(|it| it.changes.is_full((number, change.key))) {
                    true => fail(
                        Status::INVALID_VALUE,
                        format!("more than {MOST_CHANGES} settings of one object"),
                    ),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Refunds the charge of [`admit`](Self::admit) for a call that had no effect.
    pub(crate) fn dismiss(&mut self, change: &Change, payload: usize) {
        if let (Effect::Creates(..), Some(held)) = (change.effect, &mut self.held) {
            held.shrink(weight(payload));
        }
    }

    /// Keeps the charge of an object that a call is destroying. Returns its bytes, for
    /// [`give_back`](Self::give_back).
    pub(crate) fn keep(&mut self, charge: Charge) -> u64 {
        let bytes = charge.bytes();
        match &mut self.held {
            Some(held) => held.absorb(charge),
            None => drop(charge),
        }
        bytes
    }

    /// Returns a charge.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        if let Some(held) = &mut self.held {
            held.shrink(bytes);
        }
    }

    /// Records the effect of a successful call with this payload. Returns the bytes
    /// charged for destroyed objects, for [`give_back`](Self::give_back).
    pub fn apply(&mut self, change: &Change, number: u16, payload: &[u8]) -> u64 {
        match change.effect {
            Effect::None => {}
            Effect::Creates(kind, handle) => {
                let object = Object {
                    order: self.next,
                    created: Recorded::new(number, payload),
                    parent: change.parent,
                    changes: Changes::default(),
                };
                self.next += 1;
                let earlier = self.objects.insert((kind, handle), object);
                return earlier.as_ref().map_or(0, Object::weight);
            }
            Effect::Destroys(kind, handle) => return self.forget((kind, handle)),
            Effect::Changes(kind, handle) => {
                let Some(object) = self.objects.get_mut(&(kind, handle)) else {
                    return 0;
                };
                let key = (number, change.key);
                object.changes.put(key, number, payload);
                if kind == ObjectKind::GraphExec {
                    // It may refer to objects that were created later, and nothing refers
                    // to it.
                    object.order = self.next;
                    self.next += 1;
                }
            }
        }
        0
    }

    /// Records the effect of an encoded call.
    ///
    /// # Errors
    /// [`DecodeError`] if it is malformed.
    pub fn note(&mut self, call: &Recorded) -> Result<(), DecodeError> {
        if let Some(change) = call.change()? {
            let freed = self.apply(&change, call.number, &call.payload);
            self.give_back(freed);
        }
        Ok(())
    }

    /// Charges for the effect of a call that was carried out in another way, and records it.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub(crate) fn adopt(&mut self, change: &Change, call: &Recorded) -> Outcome<()> {
        self.admit(change, call.number, call.payload.len())?;
        let freed = self.apply(change, call.number, &call.payload);
        self.give_back(freed);
        Ok(())
    }

    /// Drops an object and those inside it.
    pub(crate) fn discard(&mut self, name: Name) {
        let freed = self.forget(name);
        self.give_back(freed);
    }

    /// Drops an object and those inside it. Returns the bytes charged for them.
    fn forget(&mut self, name: Name) -> u64 {
        let mut freed = self
            .objects
            .remove(&name)
            .as_ref()
            .map_or(0, Object::weight);
        if holds_others(name.0) {
            self.objects.retain(|_, object| {
                let stays = object.parent != Some(name);
                freed += if stays { 0 } else { object.weight() };
                stays
            });
        }
        freed
    }

    /// The number of live objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The calls that recreate the session's objects, in the order in which the objects were
    /// created; an object's changes follow its creation. Each has its object's name, and whether
    /// it creates the object.
    pub fn in_order(&self) -> impl Iterator<Item = (Name, bool, &Recorded)> {
        let mut objects: Vec<(&Name, &Object)> = self.objects.iter().collect();
        objects.sort_unstable_by_key(|(_, object)| object.order);
        objects.into_iter().flat_map(|(name, object)| {
            let created = std::iter::once((*name, true, &object.created));
            let changes = object.changes.calls();
            created.chain(changes.map(|change| (*name, false, change)))
        })
    }

    /// The names of the objects of one kind, ascending.
    pub fn names(&self, kind: ObjectKind) -> impl Iterator<Item = u64> {
        let of_kind = self.objects.keys().filter(|name| name.0 == kind);
        let mut handles: Vec<u64> = of_kind.map(|name| name.1).collect();
        handles.sort_unstable();
        handles.into_iter()
    }

    /// The call that created an object.
    #[must_use]
    pub fn created(&self, name: Name) -> Option<&Recorded> {
        self.objects.get(&name).map(|object| &object.created)
    }

    /// The calls that changed an object, in order.
    pub(crate) fn changes(&self, name: Name) -> impl Iterator<Item = &Recorded> {
        let object = self.objects.get(&name);
        object.into_iter().flat_map(|object| object.changes.calls())
    }

    /// Whether exactly this call is already recorded.
    #[must_use]
    pub fn knows(&self, change: &Change, recorded: &Recorded) -> bool {
        match change.effect {
            Effect::Creates(kind, handle) => self.created((kind, handle)) == Some(recorded),
            Effect::Changes(kind, handle) => self
                .objects
                .get(&(kind, handle))
                .is_some_and(|object| object.changes.calls().any(|kept| kept == recorded)),
            Effect::None | Effect::Destroys(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_protocol::codec::Text;
    use paragpu_protocol::handle::{EventHandle, FunctionHandle, ModuleHandle, StreamHandle};
    use paragpu_protocol::table::{
        EventCreate, EventDestroy, EventRecord, FuncSetAttribute, FunctionGet, ModuleUnload,
    };

    fn apply(live: &mut Live, call: Recorded) {
        live.note(&call).unwrap();
    }

    fn replay_order(live: &Live) -> Vec<&Recorded> {
        live.in_order().map(|(_, _, call)| call).collect()
    }

    fn create(event: u64) -> Recorded {
        Recorded::of(&EventCreate {
            event: EventHandle(event),
            flags: 2,
        })
    }

    #[test]
    fn a_million_created_and_destroyed_leave_nothing() {
        let mut live = Live::default();
        for event in 0..1_000_000 {
            apply(&mut live, create(event));
            apply(
                &mut live,
                Recorded::of(&EventDestroy {
                    event: EventHandle(event),
                }),
            );
        }
        assert!(live.is_empty());
        assert!(replay_order(&live).is_empty());
    }

    #[test]
    fn objects_stay_in_order_of_creation_and_changes_replace_each_other() {
        let mut live = Live::default();
        for event in [9, 3, 7] {
            apply(&mut live, create(event));
        }
        for _ in 0..1000 {
            apply(
                &mut live,
                Recorded::of(&EventRecord {
                    event: EventHandle(3),
                    stream: StreamHandle(0),
                }),
            );
        }
        let order: Vec<_> = replay_order(&live)
            .iter()
            .map(|call| (call.number, call.payload[0]))
            .collect();
        assert_eq!(order, [(0x0701, 9), (0x0701, 3), (0x0703, 3), (0x0701, 7)]);
    }

    #[test]
    fn many_changes_keep_their_order_and_replace_their_own() {
        let mut live = Live::default();
        apply(
            &mut live,
            Recorded::of(&FunctionGet {
                function: FunctionHandle(1),
                module: ModuleHandle(2),
                name: Text("kernel"),
            }),
        );
        for round in 0..3 {
            for attribute in 0..50 {
                apply(
                    &mut live,
                    Recorded::of(&FuncSetAttribute {
                        function: FunctionHandle(1),
                        attribute,
                        value: round,
                    }),
                );
            }
        }
        let order = replay_order(&live);
        assert_eq!(order.len(), 51);
        for (attribute, call) in (0..).zip(order.iter().skip(1)) {
            let expected = FuncSetAttribute {
                function: FunctionHandle(1),
                attribute,
                value: 2,
            };
            assert_eq!(**call, Recorded::of(&expected));
        }
    }

    #[test]
    fn kernels_are_destroyed_with_their_module() {
        let mut live = Live::default();
        for (function, module) in [(1, 100), (2, 200)] {
            apply(
                &mut live,
                Recorded::of(&FunctionGet {
                    function: FunctionHandle(function),
                    module: ModuleHandle(module),
                    name: Text("kernel"),
                }),
            );
        }
        for (attribute, value) in [(8, 1), (9, 2), (8, 3)] {
            apply(
                &mut live,
                Recorded::of(&FuncSetAttribute {
                    function: FunctionHandle(2),
                    attribute,
                    value,
                }),
            );
        }
        assert_eq!(replay_order(&live).len(), 4);
        apply(
            &mut live,
            Recorded::of(&ModuleUnload {
                module: ModuleHandle(100),
            }),
        );
        assert_eq!(live.len(), 1);
        assert_eq!(replay_order(&live).len(), 3);
    }
}
