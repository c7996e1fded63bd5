//! The sending half.

use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator::{Error, Sender};
use paragpu_protocol::frame::{FrameHeader, MAX_PAYLOAD};

use crate::link::{CloseOnDrop, Link};
use crate::parser::{HEARTBEAT, RESERVED_KIND};
use crate::seal::PARTS;

/// From this payload size on, [`Sender::send`] writes directly from the caller's memory.
const DIRECT: usize = 32 << 10;

/// Sends over a stream socket.
#[derive(Debug)]
pub(crate) struct StreamSender {
    link: Arc<Link>,
    _life: Arc<CloseOnDrop>,
}

impl StreamSender {
    pub(crate) fn new(link: Arc<Link>, life: Arc<CloseOnDrop>) -> Self {
        Self { link, _life: life }
    }
}

fn header(kind: u16, slot: u16, payload: &[&[u8]]) -> Result<FrameHeader, Error> {
    if [HEARTBEAT, RESERVED_KIND].contains(&kind) {
        return Err(Error::protocol(format!("kind {kind:#06x} is reserved")));
    }
    let length = payload.iter().map(|part| part.len()).sum();
    FrameHeader::new(kind, slot, 0, length).map_err(|error| Error::protocol(error.to_string()))
}

impl Sender for StreamSender {
    fn try_send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        let header = header(kind, slot, payload)?;
        self.link
            .append(header, sequence, payload)?
            .ok_or(Error::Full)
    }

    fn wait_for_room(&self, length: usize) -> Result<(), Error> {
        if length > MAX_PAYLOAD {
            return Err(Error::protocol(format!(
                "{length} bytes never fit into one frame"
            )));
        }
        self.link.wait_for_room(length)
    }

    fn flush(&self) -> Result<(), Error> {
        self.link.flush()
    }

    fn settle(&self, deadline: Instant) -> Result<bool, Error> {
        self.link.settle(deadline)
    }

    fn close(&self) {
        self.link.close();
    }

    fn send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        let header = header(kind, slot, payload)?;
        if header.payload_len() >= DIRECT && payload.len() < PARTS {
            return self.link.send_directly(header, sequence, payload);
        }
        loop {
            if let Some(sent) = self.link.append(header, sequence, payload)? {
                return Ok(sent);
            }
            self.link.wait_for_room(header.payload_len())?;
        }
    }
}
