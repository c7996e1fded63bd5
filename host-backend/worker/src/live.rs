//! What recreates the session's objects (D9): for each live object the call
//! that created it and the calls that changed it since. An object that was
//! destroyed leaves nothing.

use std::collections::{BTreeMap, HashMap};

use paragpu_protocol::call::Effect;
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::table::Call;

/// What names an object.
pub type Name = (ObjectKind, u64);

/// One call as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The call's number.
    pub number: u16,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Tells changes apart that do not replace each other.
type ChangeKey = (u16, u32);

#[derive(Debug)]
struct Object {
    /// Position in the order of creation.
    order: u64,
    created: Recorded,
    /// The object that this one lives in.
    parent: Option<Name>,
    changes: Vec<Recorded>,
    /// Where each change is.
    places: HashMap<ChangeKey, usize>,
}

/// The live objects of a session.
#[derive(Debug, Default)]
pub struct Live {
    objects: BTreeMap<Name, Object>,
    next: u64,
}

/// The object that the created one cannot outlive.
fn parent(call: &Call<'_>) -> Option<Name> {
    match call {
        Call::FunctionGet(get) => Some((ObjectKind::Module, get.module.0)),
        _ => None,
    }
}

/// Changes with the same key replace each other.
fn change_key(call: &Call<'_>) -> u32 {
    match call {
        Call::FunctionSetAttribute(set) => set.attribute,
        Call::GraphNodes(nodes) => nodes.first,
        Call::GraphNodeUpdate(update) => update.node,
        Call::GraphNodeEnable(enable) => enable.node,
        _ => 0,
    }
}

impl Live {
    /// Notes what a call that succeeded did; `payload` is the call's.
    pub fn apply(&mut self, call: &Call<'_>, number: u16, payload: &[u8]) {
        match call.effect() {
            Effect::None => {}
            Effect::Creates(kind, handle) => {
                let object = Object {
                    order: self.next,
                    created: Recorded {
                        number,
                        payload: payload.to_vec(),
                    },
                    parent: parent(call),
                    changes: Vec::new(),
                    places: HashMap::new(),
                };
                self.next += 1;
                self.objects.insert((kind, handle), object);
            }
            Effect::Destroys(kind, handle) => self.forget((kind, handle)),
            Effect::Changes(kind, handle) => {
                let key = (number, change_key(call));
                let Some(object) = self.objects.get_mut(&(kind, handle)) else {
                    return;
                };
                let place = object.places.get(&key).copied();
                match place.and_then(|place| object.changes.get_mut(place)) {
                    Some(change) => {
                        change.payload.clear();
                        change.payload.extend_from_slice(payload);
                    }
                    None => {
                        object.places.insert(key, object.changes.len());
                        object.changes.push(Recorded {
                            number,
                            payload: payload.to_vec(),
                        });
                    }
                }
                if kind == ObjectKind::GraphExec {
                    // It may name what was created later than itself, and
                    // nothing names it.
                    object.order = self.next;
                    self.next += 1;
                }
            }
        }
    }

    /// Drops an object, and those that live in it.
    pub fn forget(&mut self, name: Name) {
        self.objects.remove(&name);
        if name.0 == ObjectKind::Module {
            self.objects.retain(|_, object| object.parent != Some(name));
        }
    }

    /// How many objects live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Is there no object?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The calls that recreate the session's objects, in the order in which
    /// the objects were created; an object's changes follow its creation.
    #[must_use]
    pub fn replay_order(&self) -> Vec<&Recorded> {
        self.in_order().map(|(_, _, call)| call).collect()
    }

    /// The same with the object's name, and whether the call creates it.
    pub fn in_order(&self) -> impl Iterator<Item = (Name, bool, &Recorded)> {
        let mut objects: Vec<(&Name, &Object)> = self.objects.iter().collect();
        objects.sort_unstable_by_key(|(_, object)| object.order);
        objects.into_iter().flat_map(|(name, object)| {
            let created = std::iter::once((*name, true, &object.created));
            let changes = object.changes.iter();
            created.chain(changes.map(|change| (*name, false, change)))
        })
    }

    /// The names of the objects of one kind, ascending.
    pub fn names(&self, kind: ObjectKind) -> impl Iterator<Item = u64> {
        let all = (kind, 0)..=(kind, u64::MAX);
        self.objects.range(all).map(|((_, handle), _)| *handle)
    }

    /// The call that created an object.
    #[must_use]
    pub fn created(&self, name: Name) -> Option<&Recorded> {
        self.objects.get(&name).map(|object| &object.created)
    }

    /// Is exactly this call kept already?
    #[must_use]
    pub fn knows(&self, call: &Call<'_>, recorded: &Recorded) -> bool {
        match call.effect() {
            Effect::Creates(kind, handle) => self.created((kind, handle)) == Some(recorded),
            Effect::Changes(kind, handle) => self
                .objects
                .get(&(kind, handle))
                .is_some_and(|object| object.changes.iter().any(|kept| kept == recorded)),
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
        EventCreate, EventDestroy, EventRecord, FunctionGet, FunctionSetAttribute, ModuleUnload,
    };

    fn apply(live: &mut Live, call: Call<'_>) {
        let mut payload = Vec::new();
        let tail = call.encode(&mut payload).to_vec();
        payload.extend(tail);
        live.apply(&call, call.info().number, &payload);
    }

    fn create(event: u64) -> Call<'static> {
        Call::EventCreate(EventCreate {
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
                Call::EventDestroy(EventDestroy {
                    event: EventHandle(event),
                }),
            );
        }
        assert!(live.is_empty());
        assert!(live.replay_order().is_empty());
    }

    #[test]
    fn order_is_that_of_creation_and_changes_replace_each_other() {
        let mut live = Live::default();
        for event in [9, 3, 7] {
            apply(&mut live, create(event));
        }
        for _ in 0..1000 {
            apply(
                &mut live,
                Call::EventRecord(EventRecord {
                    event: EventHandle(3),
                    stream: StreamHandle(0),
                }),
            );
        }
        let order: Vec<_> = live
            .replay_order()
            .iter()
            .map(|call| (call.number, call.payload[0]))
            .collect();
        assert_eq!(order, [(0x0701, 9), (0x0701, 3), (0x0703, 3), (0x0701, 7)]);
    }

    #[test]
    fn a_module_takes_its_kernels_along() {
        let mut live = Live::default();
        for (function, module) in [(1, 100), (2, 200)] {
            apply(
                &mut live,
                Call::FunctionGet(FunctionGet {
                    function: FunctionHandle(function),
                    module: ModuleHandle(module),
                    name: Text("kernel"),
                }),
            );
        }
        for (attribute, value) in [(8, 1), (9, 2), (8, 3)] {
            apply(
                &mut live,
                Call::FunctionSetAttribute(FunctionSetAttribute {
                    function: FunctionHandle(2),
                    attribute,
                    value,
                }),
            );
        }
        assert_eq!(live.replay_order().len(), 4);
        apply(
            &mut live,
            Call::ModuleUnload(ModuleUnload {
                module: ModuleHandle(100),
            }),
        );
        assert_eq!(live.len(), 1);
        assert_eq!(live.replay_order().len(), 3);
    }
}
