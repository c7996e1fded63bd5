//! User objects: data of the program that lives until its last reference is dropped (CUDA
//! Driver API, Graph Management). The program and graphs hold references. Nothing is sent
//! to the host.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use paragpu_protocol::status::Status;
use parking_lot::{Condvar, Mutex};

use crate::callback::{CallbackThread, run_callback};
use crate::error::Result;

/// Destroys the program's data.
pub type Destructor = Box<dyn FnOnce() + Send>;

/// Destructors run on a separate thread, so that they may take a lock that the program
/// holds while it releases the last reference.
#[derive(Default)]
struct Destructors {
    thread: CallbackThread,
    queue: Mutex<VecDeque<Destructor>>,
    added: Condvar,
}

static DESTRUCTORS: LazyLock<Arc<Destructors>> = LazyLock::new(Arc::default);

impl Destructors {
    /// Starts the thread unless it runs.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if it cannot be started.
    fn start(self: &Arc<Self>) -> Result<()> {
        if self.thread.runs() {
            return Ok(());
        }
        let own = Arc::clone(self);
        self.thread
            .start("paragpu-objects", move || own.serve(), || ())
    }

    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(destroy) = queue.pop_front() else {
                self.added.wait(&mut queue);
                continue;
            };
            drop(queue);
            run_callback(destroy);
        }
    }

    fn add(self: &Arc<Self>, destroy: Destructor) {
        self.queue.lock().push_back(destroy);
        self.added.notify_one();
        // It runs since `start`, unless a destructor has ended it. If it cannot be started, the
        // next object's creation or end tries again.
        let _ = self.start();
    }
}

/// Starts the thread that runs destructors, before an object is created.
///
/// # Errors
/// `OPERATING_SYSTEM` if it cannot be started.
pub fn start() -> Result<()> {
    DESTRUCTORS.start()
}

/// A user object.
pub struct UserObject {
    state: Mutex<State>,
}

struct State {
    /// References of the program.
    program: u64,
    /// References of graphs.
    graphs: u64,
    /// `None` once it was called.
    destroy: Option<Destructor>,
}

impl std::fmt::Debug for UserObject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("UserObject").finish_non_exhaustive()
    }
}

impl UserObject {
    /// An object with `references` of the program.
    #[must_use]
    pub fn new(references: u32, destroy: Destructor) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                program: references.into(),
                graphs: 0,
                destroy: Some(destroy),
            }),
        })
    }

    /// Changes the counts with `change`; the last reference ends the object.
    fn count(&self, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        if state.destroy.is_none() {
            return Err(Status::INVALID_VALUE);
        }
        change(&mut state)?;
        if state.program == 0
            && state.graphs == 0
            && let Some(destroy) = state.destroy.take()
        {
            drop(state);
            DESTRUCTORS.add(destroy);
        }
        Ok(())
    }

    /// cuUserObjectRetain.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the last reference is gone.
    pub fn retain(&self, count: u32) -> Result<()> {
        self.count(|state| add(&mut state.program, count))
    }

    /// cuUserObjectRelease.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the program has fewer references.
    pub fn release(&self, count: u32) -> Result<()> {
        self.count(|state| subtract(&mut state.program, count))
    }

    fn graph_retains(&self, count: u32, moved: bool) -> Result<()> {
        self.count(|state| {
            if moved {
                subtract(&mut state.program, count)?;
            }
            add(&mut state.graphs, count)
        })
    }

    fn graph_releases(&self, count: u32) {
        // A graph's references keep the object alive, so this cannot fail.
        let _ = self.count(|state| subtract(&mut state.graphs, count));
    }
}

fn add(references: &mut u64, count: u32) -> Result<()> {
    *references = references
        .checked_add(count.into())
        .ok_or(Status::INVALID_VALUE)?;
    Ok(())
}

fn subtract(references: &mut u64, count: u32) -> Result<()> {
    *references = references
        .checked_sub(count.into())
        .ok_or(Status::INVALID_VALUE)?;
    Ok(())
}

/// The references that a graph holds. A clone holds as many again. Dropping it releases
/// them.
#[derive(Debug, Default)]
pub struct References(Vec<(Arc<UserObject>, u32)>);

impl References {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes references, with `moved` from the program's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the program has fewer, or the object has ended.
    pub fn retain(&mut self, object: &Arc<UserObject>, count: u32, moved: bool) -> Result<()> {
        object.graph_retains(count, moved)?;
        self.0.push((Arc::clone(object), count));
        Ok(())
    }

    /// Releases references.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there are fewer.
    pub fn release(&mut self, object: &Arc<UserObject>, count: u32) -> Result<()> {
        let same = |other: &Arc<UserObject>| Arc::ptr_eq(other, object);
        let held = self.0.iter().filter(|(other, _)| same(other));
        let held: u64 = held.map(|(_, count)| u64::from(*count)).sum();
        if held < count.into() {
            return Err(Status::INVALID_VALUE);
        }
        let mut left = count;
        for (other, held) in &mut self.0 {
            if same(other) {
                let taken = left.min(*held);
                *held -= taken;
                left -= taken;
            }
        }
        self.0.retain(|(_, held)| *held > 0);
        object.graph_releases(count);
        Ok(())
    }

    /// Takes as many references as `other` holds.
    pub fn join(&mut self, other: &Self) {
        for (object, count) in &other.0 {
            // `other` keeps the object alive.
            let _ = self.retain(object, *count, false);
        }
    }
}

impl Clone for References {
    fn clone(&self) -> Self {
        let mut cloned = Self::default();
        cloned.join(self);
        cloned
    }
}

impl Drop for References {
    fn drop(&mut self) {
        for (object, count) in self.0.drain(..) {
            object.graph_releases(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, TryRecvError, channel};

    use super::*;

    fn object(references: u32) -> (Arc<UserObject>, Receiver<()>) {
        let (sender, ended) = channel();
        let destroy = Box::new(move || {
            let _ = sender.send(());
        });
        (UserObject::new(references, destroy), ended)
    }

    /// The destructor keeps the channel open while it has not run.
    fn lives(ended: &Receiver<()>) -> bool {
        ended.try_recv() == Err(TryRecvError::Empty)
    }

    #[test]
    fn the_last_reference_ends_it_once() {
        let (object, ended) = object(1);
        object.retain(2).unwrap();
        assert_eq!(object.release(4), Err(Status::INVALID_VALUE));
        object.release(2).unwrap();
        assert!(lives(&ended));
        object.release(1).unwrap();
        assert_eq!(ended.recv(), Ok(()));
        assert!(ended.recv().is_err(), "called once");
        assert_eq!(object.retain(1), Err(Status::INVALID_VALUE));
        assert_eq!(object.release(1), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn graphs_hold_their_own() {
        let (object, ended) = object(3);
        let mut held = References::default();
        assert!(held.retain(&object, 4, true).is_err());
        held.retain(&object, 2, true).unwrap();
        held.retain(&object, 1, false).unwrap();
        assert_eq!(object.release(2), Err(Status::INVALID_VALUE), "two moved");
        object.release(1).unwrap();
        let cloned = held.clone();
        assert!(held.release(&object, 4).is_err());
        held.release(&object, 3).unwrap();
        assert!(held.is_empty());
        assert!(lives(&ended));
        drop(cloned);
        assert_eq!(ended.recv(), Ok(()));
    }
}
