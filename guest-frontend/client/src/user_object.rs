//! References to user objects that executable graphs hold (CUDA Driver API, Graph
//! Management). Launches in flight keep them: references are dropped when the guest learns
//! that the launches are complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::objects::user_object::References;
use crate::progress::Progress;

/// The last launch of a graph in each stream: the stream's work, and the
/// launch's position in it.
pub(crate) type Launches = Vec<(Arc<Progress>, u64)>;

/// The references that an executable graph holds.
#[derive(Debug, Default)]
pub(crate) struct HeldReferences {
    /// Of the graph, then of each graph in its nodes, with the graph's number.
    graphs: Vec<(u32, References)>,
    launches: Launches,
}

impl HeldReferences {
    pub(crate) fn new(graphs: Vec<(u32, References)>) -> Self {
        Self {
            graphs,
            launches: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.graphs.iter().all(|(_, held)| held.is_empty())
    }

    /// Records a posted launch.
    pub(crate) fn launched(&mut self, progress: &Arc<Progress>, position: u64) {
        if self.is_empty() {
            return;
        }
        let same = |(other, _): &&mut (Arc<Progress>, u64)| Arc::ptr_eq(other, progress);
        match self.launches.iter_mut().find(same) {
            Some((_, last)) => *last = position,
            None => self.launches.push((Arc::clone(progress), position)),
        }
    }

    /// A second reference to each.
    pub(crate) fn all(&self) -> References {
        let mut all = References::default();
        for (_, held) in &self.graphs {
            all.join(held);
        }
        all
    }

    /// Replaces the references of the graphs numbered from `first` on, or all, by those
    /// of `graphs`. Returns the replaced ones.
    pub(crate) fn replace(
        &mut self,
        first: Option<u32>,
        graphs: Vec<(u32, References)>,
    ) -> Vec<References> {
        let start = match first {
            Some(first) => self.graphs.iter().position(|(number, _)| *number == first),
            None => Some(0),
        };
        let places = self.graphs.iter_mut().skip(start.unwrap_or(usize::MAX));
        let pairs = places.zip(graphs);
        pairs
            .map(|((_, held), (_, new))| std::mem::replace(held, new))
            .collect()
    }

    /// Takes all references, at the graph's end.
    pub(crate) fn take(&mut self) -> Vec<References> {
        let graphs = std::mem::take(&mut self.graphs);
        graphs.into_iter().map(|(_, held)| held).collect()
    }

    pub(crate) fn launches(&self) -> Launches {
        self.launches.clone()
    }
}

/// References whose graph is gone and whose launches may be in flight.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Whether the list has entries; checked before the lock is taken.
    any: AtomicBool,
    list: Mutex<Vec<(Vec<References>, Launches)>>,
}

impl Retired {
    /// Releases references when the launches are complete.
    pub(crate) fn add(&self, held: Vec<References>, launches: Launches) {
        if held.iter().all(References::is_empty) {
            return;
        }
        self.list.lock().push((held, launches));
        self.any.store(true, Ordering::Release);
    }

    /// Releases the objects that no launch uses. All work up to `complete` is complete.
    pub(crate) fn sweep(&self, complete: u64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let over = |(progress, position): &(Arc<Progress>, u64)| {
            *position <= complete.max(progress.complete())
        };
        let mut list = self.list.lock();
        list.retain(|(_, launches)| !launches.iter().all(over));
        self.any.store(!list.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, TryRecvError, channel};

    use super::*;
    use crate::objects::user_object::UserObject;

    fn held(number: u32) -> ((u32, References), Receiver<()>) {
        let (sender, ended) = channel();
        let destroy = Box::new(move || {
            let _ = sender.send(());
        });
        let mut held = References::default();
        held.retain(&UserObject::new(1, destroy), 1, true).unwrap();
        ((number, held), ended)
    }

    fn lives(ended: &Receiver<()>) -> bool {
        ended.try_recv() == Err(TryRecvError::Empty)
    }

    #[test]
    fn launches_in_flight_keep_references() {
        let (references, ended) = held(1);
        let mut exec = HeldReferences::new(vec![references]);
        let streams = [Arc::new(Progress::default()), Arc::new(Progress::default())];
        exec.launched(&streams[0], 5);
        exec.launched(&streams[0], 9);
        exec.launched(&streams[1], 7);
        let retired = Retired::default();
        retired.add(exec.take(), exec.launches());
        streams[0].finish(8);
        streams[1].finish(7);
        retired.sweep(0);
        assert!(lives(&ended));
        streams[0].finish(9);
        retired.sweep(0);
        assert_eq!(ended.recv(), Ok(()));
    }

    #[test]
    fn a_child_s_references_are_replaced_alone() {
        let (whole, whole_ended) = held(1);
        let (child, child_ended) = held(2);
        let (new, new_ended) = held(3);
        let mut exec = HeldReferences::new(vec![whole, child]);
        drop(exec.replace(Some(4), vec![]));
        drop(exec.replace(Some(2), vec![new]));
        assert_eq!(child_ended.recv(), Ok(()));
        assert!(lives(&whole_ended) && lives(&new_ended));
        let again = exec.all();
        drop(exec);
        assert!(lives(&whole_ended) && lives(&new_ended));
        drop(again);
        assert_eq!((whole_ended.recv(), new_ended.recv()), (Ok(()), Ok(())));
    }
}
