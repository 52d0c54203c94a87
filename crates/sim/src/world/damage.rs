//! Disks that hold something else than what was written there: whoever opens such a one says so and stops, or has
//! all that it needs without it. It never goes on with anything that was not written, and never without anything that
//! was; but for the last batch, which looks like one that a power cut has torn.

use std::path::Path;

use tenure_machine::MemberId;
use tenure_storage::OpenError;

use super::{Broken, World};
use crate::member::Damage;
use crate::recovery::{DIRECTORY, Opening, OpeningError};

const RULE: &str = "K3: damage is noticed";

impl World {
    /// The power goes, and while it is off a bit of a file changes.
    pub fn flip_bit(&mut self, id: MemberId, choose: impl FnOnce(&mut World) -> Option<(std::path::PathBuf, u64, u8)>) {
        if self.members[&id].damage.is_some() {
            return;
        }
        self.lose_power(id, None);
        let Some((file, offset, bit)) = choose(self) else { return };
        self.trace.note(self.now_us, format_args!("! member {id}: bit {bit} of byte {offset} of {file:?} changes"));
        let member = self.member(id);
        let intact = member.disk.duplicate();
        member.disk.flip_bit(&file, offset, bit);
        member.damage = Some(Damage::Flipped { file, offset, intact });
    }

    /// One of the next writes of a member goes elsewhere within its file.
    pub fn misdirect_write(&mut self, id: MemberId, nth: u64, offset: u64) {
        self.trace.note(self.now_us, format_args!("! member {id}: write {nth} from now goes to byte {offset}"));
        let member = self.member(id);
        member.disk.misdirect_write(nth, offset);
        member.damage = Some(Damage::Misdirected);
    }

    /// A damaged directory was opened, or (`is_to_come`) one that was sound until then.
    pub(super) fn open_damaged(
        &mut self,
        id: MemberId,
        damage: Damage,
        is_to_come: bool,
        opened: Result<Opening, OpeningError>,
    ) -> Result<(), Broken> {
        let power_is_off = self.members[&id].power_is_off();
        match opened {
            Ok(opening) if !power_is_off => self.go_on_damaged(id, damage, is_to_come, opening),
            Err(OpeningError::Storage(OpenError::Corrupt { file, offset, reason })) => {
                if !file.starts_with(Path::new(DIRECTORY)) {
                    return Err(Broken { rule: RULE, what: format!("in {file:?}, which is not there: {reason}") });
                }
                self.trace.note(self.now_us, format_args!("! member {id}: {file:?} is corrupt at {offset}: {reason}"));
                self.report.damaged += 1;
                self.replace_disk(id, damage)
            }
            // A bit of the version, say.
            Err(OpeningError::Storage(OpenError::Newer { .. })) => self.replace_disk(id, damage),
            Err(OpeningError::Snapshot(what)) => Err(Broken { rule: RULE, what }),
            Ok(_) | Err(OpeningError::Storage(OpenError::Fault(_))) => self.replace_disk(id, damage),
            Err(OpeningError::Storage(error)) => Err(Broken { rule: RULE, what: error.to_string() }),
        }
    }

    fn go_on_damaged(
        &mut self,
        id: MemberId,
        damage: Damage,
        is_to_come: bool,
        opening: Opening,
    ) -> Result<(), Broken> {
        let broken = |what: String| Broken { rule: RULE, what: format!("member {id}: {what}") };
        self.reference.recover(&opening.recovered, opening.snapshot_hash).map_err(broken)?;
        let member = self.member(id);
        let Err(lost) = member.durable.compare(&opening.recovered) else {
            // It may still go elsewhere, or has just done so.
            if matches!(damage, Damage::Misdirected) && is_to_come {
                member.damage = Some(damage);
            }
            return self.boot(id, opening);
        };
        match damage {
            Damage::Flipped { ref file, offset, .. } if member.durable.compare_before(&opening.recovered).is_ok() => {
                self.trace.note(self.now_us, format_args!("! member {id}: {file:?} looks torn at {offset}: {lost}"));
                drop(opening);
                self.replace_disk(id, damage)
            }
            _ => Err(broken(lost)),
        }
    }

    /// What is damaged is given back as it was, or given up.
    pub(super) fn replace_disk(&mut self, id: MemberId, damage: Damage) -> Result<(), Broken> {
        match damage {
            Damage::Flipped { intact, .. } => {
                let member = self.member(id);
                member.kill();
                (member.disk, member.cut_at) = (intact, None);
            }
            Damage::Misdirected => self.lose_disk(id),
        }
        self.try_again(id, "the disk is damaged")
    }
}
