//! Kernel launches.

use paragpu_device::{Launch as DeviceLaunch, Preference, Work};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Launch;
use paragpu_protocol::types::LaunchPreference;

use crate::error::{Fault, Outcome, fail};
use crate::session::copies::Copies;
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::lanes::Place;
use crate::session::objects::Objects;
use crate::session::queue::pieces;
use crate::session::replies::Replies;
use crate::session::turn::{Launched, Pacing};
use crate::statistics::Statistics;

impl Objects {
    pub(crate) fn launch_work<'a>(&self, call: &Launch<'a>) -> Outcome<NodeWork<'a>> {
        let kernel = self.modules.kernel(call.function.0)?;
        let work = Work::Launch(DeviceLaunch {
            function: kernel.id,
            grid: call.grid,
            block: call.block,
            dynamic_shared: call.dynamic_shared,
            cooperative: call.flags & Launch::COOPERATIVE != 0,
            programmatic: call.flags & Launch::PROGRAMMATIC != 0,
            cluster: call.cluster,
            preferences: preferences(call.preferences.0)?,
            parameters: call.parameters.0.into(),
        });
        let prints = kernel.prints();
        Ok(NodeWork { work, prints })
    }
}

/// The preferences of a launch.
fn preferences(encoded: &[u8]) -> Outcome<Vec<Preference>> {
    let mut reader = Reader::new(encoded);
    let mut preferences: Vec<Preference> = Vec::new();
    while reader.remaining() > 0 {
        let Ok(LaunchPreference { attribute, value }) = reader.field() else {
            return fail(Status::INVALID_VALUE, "a preference is truncated");
        };
        let is_duplicate = |other: &Preference| other.attribute == attribute;
        if !Launch::PREFERENCES.contains(&attribute) || preferences.iter().any(is_duplicate) {
            return fail(
                Status::INVALID_VALUE,
                format!("attribute {attribute} is not a preference, or is given twice"),
            );
        }
        preferences.push(Preference { attribute, value });
    }
    Ok(preferences)
}

impl Objects {
    pub(crate) fn launch(
        &mut self,
        gpu: &mut Gpu,
        pacing: &mut Pacing,
        replies: &mut Replies,
        copies: &mut Copies,
        statistics: &Statistics,
        call: &Launch<'_>,
    ) -> Outcome<()> {
        let position = replies.link.executed();
        let place = Place {
            position,
            concurrent: call.concurrent(position),
            thread: call.thread(),
        };
        let mut submit = || {
            let NodeWork { work, prints } = self.launch_work(call)?;
            pacing.admit(gpu, &mut self.streams, call.stream)?;
            let pieces = pieces(&work, 0);
            let stream = self.streams.for_pieces(gpu, call.stream, pieces)?;
            replies.printing.note(stream, prints);
            match pacing.is_paced() {
                true => gpu.launch_paced(&work, stream, place)?,
                false => gpu.launch(&work, stream, place, copies.tokens.window())?,
            }
            pacing.launched(gpu, call.stream, stream, Launched::Kernel)?;
            Ok(())
        };
        let launched = submit();
        match &launched {
            Ok(()) => statistics.launches.add(1),
            Err(Fault::Call(_)) => gpu.tell(place),
            // It is tried again.
            Err(_) => {}
        }
        launched
    }
}
