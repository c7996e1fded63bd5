//! Ids of objects: an index and a generation, so that an id that was given
//! back is not taken for its successor.

use paragpu_protocol::status::Status;

/// Objects by id.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// Keeps `value`; its id is never 0.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` with 2³² objects at once: a guest decides how many it
    /// makes.
    pub fn insert(&mut self, value: T) -> Result<u64, Status> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).map_err(|_| Status::OUT_OF_MEMORY)?;
                self.slots.push((0, None));
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1).max(1);
        slot.1 = Some(value);
        Ok(u64::from(slot.0) << 32 | u64::from(index))
    }

    /// The object with this id.
    pub fn get(&self, id: u64) -> Option<&T> {
        let (generation, value) = self.slots.get(id as u32 as usize)?;
        (u64::from(*generation) == id >> 32).then_some(value.as_ref()?)
    }

    /// The object with this id, to be changed.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let (generation, value) = self.slots.get_mut(id as u32 as usize)?;
        if u64::from(*generation) != id >> 32 {
            return None;
        }
        value.as_mut()
    }

    /// Takes the object with this id out.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let index = id as u32;
        let (generation, value) = self.slots.get_mut(index as usize)?;
        if u64::from(*generation) != id >> 32 {
            return None;
        }
        let taken = value.take()?;
        self.free.push(index);
        Some(taken)
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    /// All objects, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots
            .iter_mut()
            .filter_map(|(_, value)| value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn an_id_given_back_is_dead() {
        let mut table = Table::default();
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b').unwrap();
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(0), None);
    }
}
