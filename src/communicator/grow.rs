//! Communicators with ranks that come later.

use consort_memory::sync::AtomicBool;

use super::Communicator;
use crate::Rank;
use consort_control::bootstrap::{UniqueId, veil};
use consort_control::codec::{Malformed, Wire, bytes_of};
use consort_control::membership::process::random;
use consort_types::call::Kind;
use consort_types::error::{Error, Result, list};

/// What a rank says: whether it has an id, the size, a nonce, and the id under that.
type Word = (bool, u32, ([u8; 16], [u8; UniqueId::BYTES]));

impl Communicator {
    /// An id by which new ranks find this communicator's, for one call of [`Communicator::grow`]. One rank makes it,
    /// hands its bytes to the ranks that are to come, passes it to `grow` and keeps it until then.
    ///
    /// # Errors
    /// As [`UniqueId::create`], and what [`Communicator::status`] says.
    pub fn grow_id(&self) -> Result<UniqueId> {
        self.core().check()?;
        UniqueId::create()
    }

    /// A new communicator of this one's ranks, which keep their numbers, and of new ones behind them, `size` together.
    /// All ranks of this communicator call it, exactly one of them with the [id](Communicator::grow_id). A new rank
    /// calls [`Communicator::join_with`] with the id, a rank from the old size on, and `size`. It returns when all have
    /// come; this communicator goes on as it was, whatever comes of it.
    ///
    /// ```
    /// use consort::{Communicator, Options, UniqueId};
    ///
    /// let one = Communicator::local(1)?.remove(0);
    /// let id = one.grow_id()?;
    /// let bytes = id.to_bytes(); // to the new rank's process
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| {
    ///         let id = UniqueId::from_bytes(&bytes).expect("what the old rank sent");
    ///         let two = Communicator::join_with(1, 2, &id, &Options::default()).expect("it grows");
    ///         two.barrier().expect("both are here");
    ///     });
    ///     let two = one.grow(2, Some(&id)).expect("the new rank comes");
    ///     two.barrier().expect("both are here");
    /// });
    /// # consort::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `size` is not greater than this one's, when ranks pass different sizes, or when
    /// none or several pass an id. As every collective while the old ranks tell each other; then as
    /// [`Communicator::join_with`]: [`Error::MissingRanks`] for new ranks that do not come within the join timeout,
    /// [`Error::Join`] when one says that it is a rank that is here already.
    pub fn grow(&self, size: u32, id: Option<&UniqueId>) -> Result<Communicator> {
        self.grow_unless(size, id, None)
    }

    /// As [`Communicator::grow`]; soon after `cancelled` was set, [`Error::Join`] as long as not all ranks have come.
    #[doc(hidden)]
    pub fn grow_unless(
        &self,
        size: u32,
        id: Option<&UniqueId>,
        cancelled: Option<&AtomicBool>,
    ) -> Result<Communicator> {
        let span = tracing::info_span!("grow", rank = self.rank(), size, id = id.is_some());
        let _entered = span.enter();
        self.core().check()?;
        if size <= self.size() {
            return Err(Error::invalid(
                format!("a communicator of {} ranks is to grow to {size}", self.size()),
                "the size counts the old ranks and the new ones",
            ));
        }
        let key = &self.core().group.member.key;
        let mut sealed = ([0; 16], [0; UniqueId::BYTES]);
        if let Some(id) = id {
            sealed = (random()?, id.to_bytes());
            // With the id a process can join, and the data connections can be listened to.
            veil(key, "grow", &sealed.0, &mut sealed.1);
        }
        let mine = bytes_of(&(id.is_some(), size, sealed));
        let (_, all) = self.all_say(Kind::Grow, &mine)?;
        let words: std::result::Result<Vec<Word>, Malformed> =
            all.chunks(mine.len()).map(Word::whole).collect();
        let words = words.map_err(|Malformed(why)| Error::internal(format!("a word of grow: {why}")))?;
        let (_, _, (nonce, mut bytes)) = words[chosen(&words, size)?];
        let id = match id {
            Some(id) => id.clone(),
            None => {
                veil(key, "grow", &nonce, &mut bytes);
                UniqueId::from_bytes(&bytes)?
            }
        };
        Self::meet(self.rank(), size, &id, &[], self.core().settings.clone(), cancelled)
    }
}

/// The one rank that has an id, by what all ranks said.
fn chosen(words: &[Word], size: u32) -> Result<usize> {
    let said = |rank: usize| format!("rank {rank} says {}", words[rank].1);
    if let Some(other) = words.iter().position(|word| word.1 != words[0].1) {
        return Err(Error::invalid(
            format!("ranks want to grow to different sizes: {}, {}", said(0), said(other)),
            format!("pass the same size on all ranks (this one passed {size})"),
        ));
    }
    let with: Vec<Rank> = (0..).zip(words).filter(|(_, word)| word.0).map(|(rank, _)| rank).collect();
    let what = match with[..] {
        [rank] => return Ok(rank as usize),
        [] => "no rank passed an id to grow".into(),
        _ => format!("ranks {} passed an id to grow", list(&with)),
    };
    Err(Error::invalid(what, "exactly one rank makes it with grow_id and passes it"))
}
