//! The host side of the device interface: the properties of a communicator, its teams, and refusals.
//!
//! Invariant: a client that asks `ncclCommQueryProperties` first never meets a refusal. Absent: device code.

use std::ffi::{c_int, c_void};

use consort_nccl::{Comm, Failure, Properties};

use crate::boundary::{exported, plain, unsupported};
use crate::handles;
use crate::types::{NcclTeam, Opaque};

/// The empty team, which a function without an error result returns for an invalid communicator.
const NO_TEAM: NcclTeam = NcclTeam { ranks: 0, rank: 0, stride: 0 };

/// A team of a communicator; for an invalid one [`NO_TEAM`], with an error that is then this thread's last one.
fn team(name: &str, comm: *mut c_void, make: impl FnOnce(c_int, c_int) -> NcclTeam) -> NcclTeam {
    let mut found = NO_TEAM;
    plain(name, comm, || {
        let asked = handles::comm(comm)?;
        found = make(asked.rank()? as c_int, asked.size()? as c_int);
        Ok(())
    });
    found
}

/// A team of this rank alone: no rank reaches the memory of another with loads and stores of a device.
fn alone(_: c_int, _: c_int) -> NcclTeam {
    NcclTeam { ranks: 1, rank: 0, stride: 1 }
}

fn all_ranks(rank: c_int, size: c_int) -> NcclTeam {
    NcclTeam { ranks: size, rank, stride: 1 }
}

fn no_device_interface(name: &str) -> c_int {
    plain(name, std::ptr::null_mut(), || {
        Err(unsupported(
            "the device interface",
            "call the collectives from the host; ncclCommQueryProperties says deviceApiSupport = false",
        ))
    })
}

/// Writes the properties for which the caller's structure has room and that its version knows.
///
/// # Safety
/// `place` must be null or an `ncclCommProperties_t` of the size in it.
unsafe fn write_properties(comm: &Comm, place: *mut c_void) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::argument("props is null", "pass an ncclCommProperties_t"));
    }
    let start = place.cast::<u8>();
    // SAFETY: checked for null; its size stands first, and a magic and a version within that size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    let mut head = [0u8; Properties::HEAD_BYTES];
    if size >= head.len() {
        // SAFETY: it has that many bytes.
        unsafe { start.cast_const().copy_to_nonoverlapping(head.as_mut_ptr(), head.len()) };
    }
    for (offset, bytes) in Properties::of(comm)?.written(size, &head)? {
        // SAFETY: `written` keeps within `size`.
        unsafe { start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    Ok(())
}

/// Defines the functions of the device interface under both their names, with the types of their arguments, which are
/// not used: all calls are refused.
macro_rules! refused {
    ($($name:ident = $twin:ident($($type:ty),*);)*) => {$(
        refused!(@one $twin, $name, ($($type),*));
        refused!(@one $name, $name, ($($type),*));
    )*};
    (@one $exported:ident, $name:ident, ($($type:ty),*)) => {
        /// The device interface is not offered.
        ///
        /// # Safety
        /// None is needed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $exported($(_: $type),*) -> c_int {
            no_device_interface(stringify!($name))
        }
    };
}

refused! {
    ncclDevCommCreate = pncclDevCommCreate(Opaque, Opaque, Opaque);
    ncclDevCommDestroy = pncclDevCommDestroy(Opaque, Opaque);
    ncclGetLsaMultimemDevicePointer = pncclGetLsaMultimemDevicePointer(Opaque, usize, Opaque);
    ncclGetMultimemDevicePointer = pncclGetMultimemDevicePointer(Opaque, usize, Opaque, Opaque);
    ncclGetLsaDevicePointer = pncclGetLsaDevicePointer(Opaque, usize, c_int, Opaque);
    ncclGetPeerDevicePointer = pncclGetPeerDevicePointer(Opaque, usize, c_int, Opaque);
    ncclGetMultimemDeviceLeInfo = pncclGetMultimemDeviceLeInfo(Opaque, usize, Opaque, Opaque);
    ncclGetCftDeviceLeInfo = pncclGetCftDeviceLeInfo(Opaque, usize, c_int, NcclTeam, Opaque, Opaque);
    ncclGetPeerDeviceLeInfo = pncclGetPeerDeviceLeInfo(Opaque, usize, c_int, Opaque, Opaque);
    ncclLsaBarrierCreateRequirement = pncclLsaBarrierCreateRequirement(NcclTeam, c_int, Opaque, Opaque);
    ncclGinBarrierCreateRequirement = pncclGinBarrierCreateRequirement(Opaque, NcclTeam, c_int, Opaque, Opaque);
    ncclLLA2ACreateRequirement = pncclLLA2ACreateRequirement(c_int, c_int, Opaque, Opaque);
    ncclGinOutboxCreateRequirement = pncclGinOutboxCreateRequirement(c_int, c_int, Opaque, Opaque);
    ncclGinInboxA2ACreateRequirement = pncclGinInboxA2ACreateRequirement(NcclTeam, c_int, c_int, Opaque, Opaque);
}

exported! {
    /// Writes the properties of the communicator.
    ///
    /// # Safety
    /// `place` must be null or an `ncclCommProperties_t` of the size in it.
    fn ncclCommQueryProperties = pncclCommQueryProperties(comm: *mut c_void, place: *mut c_void) -> c_int {
        plain("ncclCommQueryProperties", comm, || {
            let asked = handles::comm(comm)?;
            // SAFETY: this function's own contract.
            unsafe { write_properties(&asked, place) }
        })
    }

    /// Slots of eight bytes for an all-to-all of `elements` elements of at most `element_bytes` bytes; 0 for invalid
    /// numbers.
    ///
    /// # Safety
    /// None is needed.
    fn ncclLLA2ACalcSlots = pncclLLA2ACalcSlots(elements: c_int, element_bytes: c_int) -> c_int {
        const SLOT_BYTES: c_int = 8;
        if elements < 0 || element_bytes < 0 {
            return 0;
        }
        let slots = (element_bytes / SLOT_BYTES) + c_int::from(element_bytes % SLOT_BYTES != 0);
        elements.checked_mul(slots).unwrap_or(0)
    }

    /// All ranks.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamWorld = pncclTeamWorld(comm: *mut c_void) -> NcclTeam {
        team("ncclTeamWorld", comm, all_ranks)
    }

    /// The ranks whose memory this one reaches with a device's loads and stores: itself.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamLsa = pncclTeamLsa(comm: *mut c_void) -> NcclTeam {
        team("ncclTeamLsa", comm, alone)
    }

    /// The ranks with the same number in their team of loads and stores: all ranks.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamRail = pncclTeamRail(comm: *mut c_void) -> NcclTeam {
        team("ncclTeamRail", comm, all_ranks)
    }

    /// This rank alone: the library knows no such fabric.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamCft = pncclTeamCft(comm: *mut c_void, _mode: c_int) -> NcclTeam {
        team("ncclTeamCft", comm, alone)
    }

    /// This rank alone: the library knows no such fabric.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamCftMultimem = pncclTeamCftMultimem(comm: *mut c_void) -> NcclTeam {
        team("ncclTeamCftMultimem", comm, alone)
    }

    /// The number in the communicator of a team's rank; -1 for an invalid communicator.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamRankToWorld = pncclTeamRankToWorld(comm: *mut c_void, of: NcclTeam, rank: c_int) -> c_int {
        renumbered("ncclTeamRankToWorld", comm, of, rank, all_ranks)
    }

    /// The number of a team's rank among the ranks that are reached by loads and stores; -1 for an invalid
    /// communicator.
    ///
    /// # Safety
    /// None is needed.
    fn ncclTeamRankToLsa = pncclTeamRankToLsa(comm: *mut c_void, of: NcclTeam, rank: c_int) -> c_int {
        renumbered("ncclTeamRankToLsa", comm, of, rank, alone)
    }
}

/// The number within `to` of rank `rank` of the team `of`. This rank is in both teams.
fn renumbered(
    name: &str,
    comm: *mut c_void,
    of: NcclTeam,
    rank: c_int,
    to: impl FnOnce(c_int, c_int) -> NcclTeam,
) -> c_int {
    let to = team(name, comm, to);
    if to == NO_TEAM {
        return -1;
    }
    let apart = rank.wrapping_sub(of.rank).wrapping_mul(of.stride);
    to.rank.wrapping_add(apart.checked_div(to.stride).unwrap_or(apart))
}
