//! Maps the guest's handles to the device's objects, one table per kind.

use paragpu_protocol::status::Status;
use rustc_hash::FxHashMap;

use crate::error::{Outcome, fail};

/// Maximum number of objects of one kind in a session.
const MAX_OBJECTS: usize = 1 << 20;

/// A map keyed by handles, which the guest takes from a counter. A guest that
/// chooses colliding handles slows down only itself.
pub(crate) type HandleMap<K, V> = FxHashMap<K, V>;

/// The guest's objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: &'static str,
    objects: HandleMap<u64, T>,
}

impl<T> Table<T> {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            objects: HandleMap::default(),
        }
    }

    /// The object with this handle.
    pub(crate) fn get(&self, handle: u64) -> Outcome<&T> {
        match self.objects.get(&handle) {
            Some(object) => Ok(object),
            None => self.unknown(handle),
        }
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Outcome<&mut T> {
        // A second lookup only if it is missing.
        match self.objects.get_mut(&handle) {
            Some(object) => Ok(object),
            None => fail(
                Status::INVALID_HANDLE,
                format!("no {} has the handle {handle:#x}", self.kind),
            ),
        }
    }

    fn unknown<A>(&self, handle: u64) -> Outcome<A> {
        fail(
            Status::INVALID_HANDLE,
            format!("no {} has the handle {handle:#x}", self.kind),
        )
    }

    /// Checks that a new object can have this handle.
    pub(crate) fn check_free(&self, handle: u64) -> Outcome<()> {
        if self.objects.contains_key(&handle) {
            return fail(
                Status::INVALID_HANDLE,
                format!("a {} with the handle {handle:#x} exists already", self.kind),
            );
        }
        if self.objects.len() >= MAX_OBJECTS {
            return fail(
                Status::OUT_OF_MEMORY,
                format!(
                    "the session has {MAX_OBJECTS} objects of the kind {}",
                    self.kind
                ),
            );
        }
        Ok(())
    }

    /// Adds an object, after [`check_free`](Self::check_free).
    pub(crate) fn insert(&mut self, handle: u64, object: T) {
        self.objects.insert(handle, object);
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, handle: u64) -> Outcome<T> {
        match self.objects.remove(&handle) {
            Some(object) => Ok(object),
            None => self.unknown(handle),
        }
    }

    /// Whether the table is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&u64, &mut T) -> bool) {
        self.objects.retain(keep);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    fn status<T: std::fmt::Debug>(outcome: Outcome<T>) -> Status {
        match outcome {
            Err(Fault::Call(error)) => error.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_is_used_once() {
        let mut table = Table::new("event");
        table.check_free(5).unwrap();
        table.insert(5, 'a');
        assert_eq!(status(table.check_free(5)), Status::INVALID_HANDLE);
        assert_eq!(*table.get(5).unwrap(), 'a');
        assert_eq!(status(table.get(6)), Status::INVALID_HANDLE);
        assert_eq!(table.remove(5).unwrap(), 'a');
        assert_eq!(status(table.remove(5)), Status::INVALID_HANDLE);
        assert_eq!(status(table.get_mut(5)), Status::INVALID_HANDLE);
        assert_eq!(table.len(), 0);
    }
}
