//! Stop-and-copy: what the source sends while the session is stopped. That is only
//! what the destination lacks: dirty pages, or without dirty tracking the chunks
//! whose hashes differ.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use paragpu_communicator::{Receiver, Sender};
use paragpu_protocol::codec::{Bytes, Field};
use paragpu_protocol::handshake::NO_WINDOW;
use paragpu_protocol::layout::CHUNK;

use super::peer::send_descriptors;
use super::switchover::Gates;
use super::{SILENCE, Source};
use crate::session::Session;
use crate::transfer::handover::{self, ConnectionRecord};
use crate::transfer::orders::{Phase, Progress, Report};
use crate::transfer::precopy::PreCopy;
use crate::transfer::regions::Chunk;
use crate::transfer::shared::Delivery;
use crate::transfer::state::{Kind, StateError};

/// Up to this size, sending is faster than comparing.
const LITTLE: u64 = CHUNK;
/// Chunks per request for hashes.
const HASHES: usize = 65_536;

impl Source {
    /// Everything after the stop, up to the commit.
    pub(super) fn stop_and_copy(
        &mut self,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<(), StateError> {
        self.catch_up(session)?;
        let Some(mut precopy) = self.precopy.take() else {
            return Err(StateError::Order("there was no pre-copy"));
        };
        if session.sharing.offers() {
            // Sessions that took the memory wrote to it, too.
            precopy.ignore_tracking();
        }
        self.reached("objects recreated");
        let sent = self.send_rest(session, &mut precopy);
        precopy.mover.keep(session);
        sent?;
        self.reached("contents sent");
        let bookkeeping = session.bookkeeping()?;
        // A reconnecting guest receives the frames that it lacks.
        let settled = !self.local
            || matches!(
                session
                    .replies
                    .link
                    .sender()
                    .settle(Instant::now() + SILENCE),
                Ok(true)
            );
        if !settled {
            return Err(StateError::Impossible(
                "the program does not receive the replies to its calls".into(),
            ));
        }
        let writer = self.peer.writer()?;
        writer.put(Kind::Bookkeeping, &[&bookkeeping])?;
        session.write_frames(writer)?;
        if !self.local {
            return self.await_guest_at_destination();
        }
        let secured = receiver.secured().unwrap_or_default();
        self.pass_connection(session, &secured, &receiver.hand_over())?;
        self.peer.expect(Kind::Ready)?;
        self.reached("connection passed on");
        Ok(())
    }

    /// Logs a step, for analysis of the downtime.
    pub(super) fn reached(&self, step: &str) {
        let micros = self.attempts.standing().as_micros();
        tracing::debug!(micros, "{step}");
    }

    fn send_rest(
        &mut self,
        session: &mut Session,
        precopy: &mut PreCopy,
    ) -> Result<(), StateError> {
        let mut fetched = self.chunks(session, Delivery::Fetched)?;
        if self.copies_before {
            fetched = self.different(session, precopy, &fetched)?;
        }
        self.fetches.queue = fetched;
        while self.fetch()? {
            self.peer.expect(Kind::Ready)?;
        }
        let (replaced, chunks): (Vec<Chunk>, Vec<Chunk>) = self
            .chunks(session, Delivery::Sent)?
            .into_iter()
            .partition(|chunk| self.shared.replaced(chunk));
        let rest = precopy.rest(session, &chunks)?;
        let mut send = rest.send;
        send.extend(replaced);
        send.extend(match rest.compare.iter().map(Chunk::size).sum() {
            0..=LITTLE => rest.compare,
            _ => self.different(session, precopy, &rest.compare)?,
        });
        let all = [&send, &rest.fresh].into_iter().flatten();
        let all = all.map(Chunk::size).sum();
        self.reached("dirty chunks found");
        self.peer.send_off();
        let sent = self
            .send_chunks(session, precopy, &send, true, (0, all))
            .and_then(|done| self.send_chunks(session, precopy, &rest.fresh, false, (done, all)));
        self.peer.await_writer()?;
        sent?;
        if cfg!(debug_assertions) {
            // Verifies dirty tracking. Handed-over memory is the same memory on both
            // sides.
            let chunks = session.chunks()?;
            let different = self.different(session, precopy, &chunks)?;
            if !different.is_empty() {
                return Err(StateError::Impossible(format!(
                    "{} of {} chunks differ after the copy: {:?}",
                    different.len(),
                    chunks.len(),
                    different.first()
                )));
            }
        }
        Ok(())
    }

    /// The chunks whose hashes differ between the two ends.
    fn different(
        &mut self,
        session: &mut Session,
        precopy: &mut PreCopy,
        chunks: &[Chunk],
    ) -> Result<Vec<Chunk>, StateError> {
        let mut different = Vec::new();
        for chunks in chunks.chunks(HASHES) {
            let mut names = Vec::new();
            for chunk in chunks {
                chunk.put_name(&mut names);
            }
            let writer = self.peer.writer()?;
            writer.put(Kind::Hash, &[&names])?;
            writer.flush()?;
            let ours = precopy.mover.hash_all(session, chunks)?;
            let theirs = self.peer.expect(Kind::Hashes)?;
            let theirs = theirs.as_chunks::<32>().0;
            if theirs.len() != chunks.len() {
                return Err(StateError::Order("hashes of other contents"));
            }
            let pairs = chunks.iter().zip(ours.iter().zip(theirs));
            different.extend(
                pairs
                    .filter(|(_, (ours, theirs))| ours != theirs)
                    .map(|(chunk, _)| *chunk),
            );
        }
        Ok(different)
    }

    /// Sends contents, including zeros if `zeros`. `progress` counts bytes sent and
    /// total. Returns the bytes sent.
    fn send_chunks(
        &mut self,
        session: &mut Session,
        precopy: &mut PreCopy,
        chunks: &[Chunk],
        zeros: bool,
        (mut done, all): (u64, u64),
    ) -> Result<u64, StateError> {
        let stage = self.peer.stage()?;
        let gates = self.gates.as_ref();
        let orders = std::sync::Arc::clone(session.transfer.orders());
        precopy.mover.read_batches(session, chunks, |batch| {
            gates.map_or(Ok(()), Gates::still)?;
            let mut payload = stage.payload();
            for (chunk, bytes) in batch.each() {
                done += chunk.size();
                if zeros || chunk.is_variable() || bytes.iter().any(|byte| *byte != 0) {
                    chunk.put(bytes, &mut payload);
                }
            }
            if !payload.is_empty() {
                stage.give(payload);
            }
            orders.report(Report::Progress(Progress {
                phase: Phase::Stopped,
                done,
                all,
            }));
            Ok(())
        })?;
        Ok(done)
    }

    /// Passes the connection of the stopped session on.
    fn pass_connection(
        &mut self,
        session: &Session,
        secured: &[u8],
        unfinished: &[u8],
    ) -> Result<(), StateError> {
        let current = handover::current();
        let Some(current) = current.as_ref() else {
            return Err(StateError::Impossible(
                "the session has no connection to pass on".into(),
            ));
        };
        if session.host.window().is_some() != current.window.is_some() {
            return Err(StateError::Impossible(
                "the program reconnected while its session moved; move it again".into(),
            ));
        }
        let channel = current.channel;
        let mut head = Vec::new();
        let record = ConnectionRecord {
            transport: current.transport as u8,
            channel: channel.number,
            offset: channel.offset,
            size: channel.size,
            lists: channel.lists,
            window: current.window.unwrap_or(NO_WINDOW),
            secured: Bytes(secured),
            unfinished: Bytes(unfinished),
        };
        let tail = record.encode(&mut head);
        let writer = self.peer.writer()?;
        writer.put(Kind::Connection, &[&head, tail])?;
        writer.flush()?;
        let token = std::iter::once(self.token.as_fd());
        let fds: Vec<BorrowedFd<'_>> = token.chain(current.fds.iter().map(AsFd::as_fd)).collect();
        send_descriptors(self.peer.socket(), &fds)
    }
}
