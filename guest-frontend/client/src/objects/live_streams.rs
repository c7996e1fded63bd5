//! The streams that exist, and those that the host must keep a while longer.
//!
//! A thread that waits for all work names other threads' streams to the host. Their threads may
//! destroy them meanwhile: the host is told once nobody names them any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_protocol::handle::StreamHandle;

use crate::objects::stream::Stream;

/// Existing streams.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) streams: Vec<Arc<Stream>>,
    /// By their handles. Programs with thousands of streams wait for all of them.
    kept: BTreeMap<u64, Keep>,
}

/// A stream that threads name.
#[derive(Debug, Default)]
struct Keep {
    /// How many.
    by: usize,
    is_destroyed: bool,
}

impl Live {
    pub(crate) fn with(stream: &Arc<Stream>) -> Self {
        Self {
            streams: vec![Arc::clone(stream)],
            kept: BTreeMap::new(),
        }
    }

    /// The streams with work that is not known to be complete, where all work up to `complete` is.
    pub(crate) fn busy(&self, complete: u64) -> impl Iterator<Item = &Arc<Stream>> {
        let streams = self.streams.iter();
        streams.filter(move |stream| {
            let progress = stream.progress();
            progress.posted() > progress.complete().max(complete)
        })
    }

    /// A thread names the stream from now on.
    pub(crate) fn keep(&mut self, stream: StreamHandle) {
        self.kept.entry(stream.0).or_default().by += 1;
    }

    /// A thread no longer names the stream. Returns true if the host must now destroy it.
    pub(crate) fn release(&mut self, stream: StreamHandle) -> bool {
        let Some(keep) = self.kept.get_mut(&stream.0) else {
            return false;
        };
        if keep.by > 1 {
            keep.by -= 1;
            return false;
        }
        let keep = self.kept.remove(&stream.0);
        keep.is_some_and(|keep| keep.is_destroyed)
    }

    /// Removes a stream that the program destroys. Returns true if the host must keep it.
    pub(crate) fn remove(&mut self, stream: &Stream) -> bool {
        let handle = stream.handle();
        self.streams.retain(|other| other.handle() != handle);
        let kept = self.kept.get_mut(&handle.0);
        kept.map(|keep| keep.is_destroyed = true).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(handles: &[u64]) -> Live {
        let mut live = Live::with(&Arc::new(Stream::new_legacy()));
        for handle in handles {
            let stream = Stream::new(StreamHandle(*handle), None, 0, 0);
            live.streams.push(Arc::new(stream));
        }
        live
    }

    #[test]
    fn a_stream_is_destroyed_once_nobody_names_it() {
        let mut live = live(&[7, 8]);
        let (first, second) = (Arc::clone(&live.streams[1]), Arc::clone(&live.streams[2]));
        live.keep(first.handle());
        live.keep(first.handle());
        assert!(live.remove(&first));
        assert!(!live.release(first.handle()));
        assert!(live.release(first.handle()));
        assert!(!live.remove(&second), "nobody named it");
        live.keep(StreamHandle::LEGACY);
        assert!(!live.release(StreamHandle::LEGACY), "it exists");
        assert!(live.kept.is_empty());
        assert_eq!(live.streams.len(), 1);
    }

    #[test]
    fn streams_with_work_are_busy() {
        let live = live(&[7, 8]);
        live.streams[1].progress().join(5);
        live.streams[2].progress().join(9);
        let busy = |complete| {
            live.busy(complete)
                .map(|one| one.handle().0)
                .collect::<Vec<_>>()
        };
        assert_eq!(busy(0), [7, 8]);
        assert_eq!(busy(5), [8]);
        live.streams[2].progress().finish(9);
        assert!(busy(5).is_empty());
    }
}
