//! The guest's objects by handle, one table per chapter.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::departed::Departed;
use super::event::Events;
use super::gpu::Gpu;
use super::graph::Graphs;
use super::green::Greens;
use super::host_account::Charge;
use super::host_function::HostFunctions;
use super::module::Modules;
use super::stream::Streams;
use super::texture::Textures;
use crate::error::Outcome;
use crate::live::{Change, Live};

/// The objects of a session.
pub(crate) struct Objects {
    pub(crate) streams: Streams,
    pub(crate) events: Events,
    pub(crate) modules: Modules,
    pub(crate) textures: Textures,
    pub(crate) graphs: Graphs,
    pub(crate) greens: Greens,
    /// Shared with threads of the device.
    pub(crate) host_functions: Arc<HostFunctions>,
    /// Context limits that the guest set.
    limits: BTreeMap<u32, u64>,
    /// The calls that recreate all of them.
    pub(crate) live: Live,
    /// Destroyed objects whose memory is still charged.
    departed: Departed,
}

impl Objects {
    pub(crate) fn new(modules: Modules, host_functions: HostFunctions) -> Self {
        let host_functions = Arc::new(host_functions);
        Self {
            streams: Streams::new(Arc::clone(&host_functions), modules.account().open()),
            events: Events::new(),
            graphs: Graphs::new(Arc::clone(modules.account())),
            live: Live::counted(modules.account().open()),
            departed: Departed::default(),
            modules,
            textures: Textures::new(),
            greens: Greens::new(),
            host_functions,
            limits: BTreeMap::new(),
        }
    }

    /// Charges for the effect of a call with a payload of this length.
    ///
    /// # Errors
    /// As [`Live::admit`].
    pub(crate) fn admit(
        &mut self,
        gpu: &mut Gpu,
        change: &Change,
        number: u16,
        payload: usize,
    ) -> Outcome<()> {
        match self.live.admit(change, number, payload) {
            Err(_) if !self.departed.is_empty() => {
                self.reclaim(gpu)?;
                self.live.admit(change, number, payload)
            }
            admitted => admitted,
        }
    }

    /// Returns the charges of destroyed objects that the device no longer keeps.
    pub(crate) fn reclaim(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        if !self.departed.is_empty() {
            let freed = self.departed.settle(gpu, &mut self.streams)?;
            self.live.give_back(freed);
        }
        Ok(())
    }

    /// Keeps the charge of a destroyed object for as long as the device keeps the object.
    pub(crate) fn depart(&mut self, gpu: &mut Gpu, charge: Charge) -> Outcome<()> {
        let bytes = self.live.keep(charge);
        let freed = self.departed.add(gpu, &mut self.streams, bytes)?;
        self.live.give_back(freed);
        Ok(())
    }

    /// Records the effect of a successful call.
    pub(crate) fn apply(
        &mut self,
        gpu: &mut Gpu,
        change: &Change,
        number: u16,
        payload: &[u8],
    ) -> Outcome<()> {
        let bytes = self.live.apply(change, number, payload);
        let freed = self.departed.add(gpu, &mut self.streams, bytes)?;
        self.live.give_back(freed);
        Ok(())
    }

    /// Records a context limit that the guest set.
    pub(crate) fn set_limit(&mut self, limit: u32, value: u64) {
        self.limits.insert(limit, value);
    }

    /// The context limit, if the guest set it.
    pub(crate) fn limit(&self, limit: u32) -> Option<u64> {
        self.limits.get(&limit).copied()
    }

    /// The context limits that the guest set.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, u64)> {
        self.limits.iter().map(|(limit, value)| (*limit, *value))
    }
}
