//! Green contexts: parts of a device's multiprocessors (CUDA Driver API, Green
//! Contexts).

use std::sync::Arc;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::table::{GreenCreate, GreenDestroy, SmResourceGet, SmResourceSplit};
use paragpu_protocol::types::{SmGroups, SmResource};

use crate::Session;
use crate::error::Result;
use crate::objects::junction::Junction;
use crate::objects::stream::Stream;

/// A green context.
#[derive(Debug)]
pub struct Green {
    handle: GreenHandle,
    resource: SmResource,
    default: Arc<Stream>,
    junction: Junction,
}

impl Green {
    /// The host's name for it.
    #[must_use]
    pub fn handle(&self) -> GreenHandle {
        self.handle
    }

    /// Its multiprocessors.
    #[must_use]
    pub fn resource(&self) -> SmResource {
        self.resource
    }

    /// Its default stream.
    #[must_use]
    pub fn default_stream(&self) -> &Arc<Stream> {
        &self.default
    }

    pub(crate) fn junction(&self) -> &Junction {
        &self.junction
    }
}

impl Session {
    /// cuDeviceGetDevResource.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` of a device without green contexts.
    pub fn sm_resource(&self) -> Result<SmResource> {
        self.call(&SmResourceGet {})
    }

    /// cuDevSmResourceSplitByCount of a green context's resource, or of the
    /// whole device's.
    ///
    /// # Errors
    /// The host driver's answer.
    pub fn sm_split(
        &self,
        of: Option<&Green>,
        groups: u32,
        flags: u32,
        least: u32,
    ) -> Result<SmGroups> {
        self.call(&SmResourceSplit {
            green: of.map_or(GreenHandle::default(), Green::handle),
            groups,
            flags,
            least,
        })
    }

    /// cuGreenCtxCreate for the part that the encoded splits in `way` lead to. The
    /// program knows it as `count` multiprocessors.
    ///
    /// # Errors
    /// The host driver's answer.
    pub fn create_green(&self, way: &[u8], count: u32) -> Result<Arc<Green>> {
        let (link, handles) = self.streams().maker();
        let handle = GreenHandle(handles.next());
        let resource = link.call(&GreenCreate {
            green: handle,
            count,
            way: Bytes(way),
        })?;
        Ok(Arc::new(Green {
            handle,
            resource,
            default: self.streams().create_in(handle, 0)?,
            junction: Junction::default(),
        }))
    }

    /// cuGreenCtxDestroy: ends its streams; their work still runs.
    pub fn destroy_green(&self, green: &Green) -> Result<()> {
        for stream in &*self.streams().all(Some(green.handle)) {
            self.streams().destroy(stream)?;
        }
        let (link, _) = self.streams().maker();
        let call = GreenDestroy {
            green: green.handle,
        };
        link.post(&call).map(drop)
    }

    /// cuGreenCtxStreamCreate. The caller keeps `priority` in the device's range.
    pub fn create_green_stream(&self, green: &Green, priority: i32) -> Result<Arc<Stream>> {
        let stream = self.streams().create_in(green.handle, priority)?;
        self.streams().join(&green.junction, &stream)?;
        Ok(stream)
    }

    /// cuCtxSynchronize of a green context.
    ///
    /// # Errors
    /// The first error of failed work.
    pub fn synchronize_green(&self, green: &Green) -> Result<()> {
        let streams = self.streams().all(Some(green.handle));
        let mut streams = streams.iter();
        streams.try_for_each(|stream| self.streams().synchronize(stream))
    }
}
