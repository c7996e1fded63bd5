//! Recreates texture and surface objects whose memory the program has freed. That is legal for as
//! long as nothing uses them, and programs commonly destroy the memory first.

use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::handle::ArrayHandle;
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::{SurfaceCreate, TextureCreate};
use paragpu_protocol::types::TextureResource;

use super::replay::refused;
use super::state::{StateError, device};
use crate::error::Outcome;
use crate::live::Recorded;
use crate::session::Session;
use crate::session::gpu::Gpu;
use crate::session::texture::Textures;

impl Session {
    /// Carries out the call if it creates a texture or surface object without its memory. The
    /// object keeps its value, which no other one may get, and can be destroyed. Returns false
    /// for all other calls.
    ///
    /// # Errors
    /// [`StateError::Impossible`] if the device fails.
    pub(super) fn recreate_stale(&mut self, call: &Recorded) -> Result<bool, StateError> {
        if call.number == SurfaceCreate::INFO.number {
            let SurfaceCreate { surface, array, .. } = decode_all(&call.payload)?;
            return self.recreate_without(array, call, |textures, gpu| {
                textures.surface_without_array(gpu, surface.0)
            });
        }
        if call.number != TextureCreate::INFO.number {
            return Ok(false);
        }
        let TextureCreate { texture, spec } = decode_all(&call.payload)?;
        let array = match spec.resource {
            TextureResource::Array(array) => array,
            TextureResource::Level(of) => of.array,
            TextureResource::Linear(linear) => return self.recreate_unmapped(linear.address, call),
        };
        self.recreate_without(array, call, |textures, gpu| {
            textures.texture_without_array(gpu, texture.0)
        })
    }

    /// Creates an object without its array, unless there is one, and records it.
    fn recreate_without(
        &mut self,
        array: ArrayHandle,
        call: &Recorded,
        create: impl FnOnce(&mut Textures, &mut Gpu) -> Outcome<()>,
    ) -> Result<bool, StateError> {
        let textures = &mut self.objects.textures;
        if textures.array(array.0).is_ok() {
            return Ok(false);
        }
        refused(create(textures, &mut self.gpu))?;
        if let Some(change) = call.change()? {
            refused(self.objects.live.adopt(&change, call))?;
        }
        Ok(true)
    }

    /// Creates a texture of linear memory that is no longer mapped. Whatever the program maps
    /// there later is the texture's, so it is created with its own address, at which memory is
    /// mapped meanwhile.
    fn recreate_unmapped(&mut self, address: u64, call: &Recorded) -> Result<bool, StateError> {
        if !self.memory.is_unmapped(&self.gpu, address) {
            return Ok(false);
        }
        let (gpu, link) = (&mut self.gpu, &mut self.replies.link);
        refused(self.memory.unmap_idle(gpu, link))?;
        let chunk = address - address % CHUNK;
        device(self.gpu.memory_map(chunk, CHUNK))?;
        let created = self.perform(call);
        device(self.gpu.memory_unmap(chunk))?;
        created.map(|()| true)
    }
}

#[cfg(all(test, feature = "software"))]
mod tests {
    use paragpu_protocol::handle::{DeviceAddress, SurfaceHandle, TextureHandle};
    use paragpu_protocol::table::{
        ArrayCreate, ArrayDestroy, MemMap, MemUnmap, SurfaceDestroy, TextureDestroy,
    };
    use paragpu_protocol::types::{ArrayLevel, ArrayShape, LinearResource, TextureSpec};

    use paragpu_abi::CU_AD_FORMAT_FLOAT;

    use super::super::tests::{SHAPE, alone, no_view, read, sampling, session, write};
    use super::*;

    fn texture(handle: u64, resource: TextureResource) -> Recorded {
        Recorded::of(&TextureCreate {
            texture: TextureHandle(handle),
            spec: TextureSpec {
                resource,
                sampling: sampling(),
                view: no_view(),
            },
        })
    }

    fn values(session: &Session) -> [u64; 5] {
        let textures = &session.objects.textures;
        [
            textures.texture(11).unwrap(),
            textures.texture(12).unwrap(),
            textures.surface(13).unwrap(),
            textures.texture(14).unwrap(),
            textures.texture(15).unwrap(),
        ]
    }

    #[test]
    fn textures_without_their_memory_are_recreated() {
        let _alone = alone();
        let mut first = session(1, 1 << 30);
        let arena = first.gpu.regions().arena;
        let linear = LinearResource {
            address: arena + CHUNK + 4096,
            format: CU_AD_FORMAT_FLOAT.cast_unsigned(),
            channels: 1,
            width: 4096,
            height: 0,
            pitch: 0,
        };
        let map = |address, chunks| {
            Recorded::of(&MemMap {
                address: DeviceAddress(address),
                size: chunks * CHUNK,
            })
        };
        let mipmap = ArrayShape { levels: 3, ..SHAPE };
        let array = |handle, shape| {
            Recorded::of(&ArrayCreate {
                array: ArrayHandle(handle),
                shape,
            })
        };
        let (kept, gone, gone_too) = (ArrayHandle(1), ArrayHandle(2), ArrayHandle(3));
        let level = ArrayLevel {
            array: gone_too,
            level: 2,
        };
        for call in [
            map(arena, 4),
            array(1, SHAPE),
            array(2, SHAPE),
            array(3, mipmap),
            texture(11, TextureResource::Array(gone)),
            texture(12, TextureResource::Level(level)),
            Recorded::of(&SurfaceCreate {
                surface: SurfaceHandle(13),
                array: gone_too,
                level: 1,
            }),
            texture(14, TextureResource::Linear(linear)),
            texture(15, TextureResource::Array(kept)),
            Recorded::of(&ArrayDestroy { array: gone }),
            Recorded::of(&ArrayDestroy { array: gone_too }),
            Recorded::of(&MemUnmap {
                address: DeviceAddress(arena),
            }),
            // Where a part of it was.
            map(arena + 2 * CHUNK, 1),
        ] {
            first.perform(&call).unwrap();
        }
        let (before, free) = (values(&first), first.memory.arena().free());
        let state = write(&mut first);
        drop(first);
        let mut second = session(1, 1 << 30);
        read(&mut second, &state).unwrap();
        assert_eq!(values(&second), before);
        assert_eq!(second.memory.arena().free(), free);
        // Again, from there.
        let state = write(&mut second);
        drop(second);
        let mut third = session(1, 1 << 30);
        read(&mut third, &state).unwrap();
        assert_eq!(values(&third), before);
        // What is mapped there later is the texture's, as before.
        third.perform(&map(arena + CHUNK, 1)).unwrap();
        for texture in [11, 12, 14, 15].map(TextureHandle) {
            third
                .perform(&Recorded::of(&TextureDestroy { texture }))
                .unwrap();
        }
        let surface = SurfaceHandle(13);
        third
            .perform(&Recorded::of(&SurfaceDestroy { surface }))
            .unwrap();
    }
}
