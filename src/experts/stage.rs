//! The rows that a rank has at one point of a route, with the choices that each stands for, and the same as words of a message.
//!
//! Invariant: rows keep the order in which they are sent, and choices that of their token. What comes from another rank is checked
//! before it is used. Absent: the values of rows.

use consort_kernels::rows::Real;
use consort_memory::{Span, SpanMut};

use super::layout::{Layout, ROW_WORDS, Stretch};
use crate::Rank;
use consort_types::error::{Error, Result};

/// A row at this point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// The place of its values: tokens first, then what came in the first leg, then in the second.
    pub(super) at: u32,
    pub(super) source: Rank,
    pub(super) token: u32,
    /// Where its choices end in the stage's; those of the next row begin there.
    pub(super) end: u32,
}

/// All rows of a rank at one point.
#[derive(Clone, Debug)]
pub(super) struct Stage<W> {
    pub(super) rows: Vec<Row>,
    pub(super) experts: Vec<u32>,
    pub(super) weights: Vec<W>,
}

/// What a rank sends, by destination.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    /// Rows of the stage, and how many each rank gets.
    pub(super) rows: Vec<u32>,
    pub(super) row_counts: Vec<usize>,
    /// Choices of the stage, and how many each rank gets.
    pub(super) choices: Vec<u32>,
    pub(super) choice_counts: Vec<usize>,
    /// By row that is sent: where its choices end.
    ends: Vec<u32>,
}

impl<W: Real> Stage<W> {
    pub(super) fn new() -> Self {
        Stage { rows: Vec::new(), experts: Vec::new(), weights: Vec::new() }
    }

    /// The choices of a row, as places in the stage's.
    pub(super) fn choices(&self, row: usize) -> std::ops::Range<usize> {
        let begin = row.checked_sub(1).map_or(0, |before| self.rows[before].end);
        begin as usize..self.rows[row].end as usize
    }

    /// Who gets what on a stretch: a row goes to a rank once, with all choices that are for it.
    pub(super) fn lists(&self, layout: &Layout, stretch: Stretch) -> Lists {
        let size = layout.size() as usize;
        let next: Vec<Rank> = self.experts.iter().map(|expert| layout.next(stretch, *expert)).collect();
        let mut choice_counts = vec![0usize; size];
        next.iter().for_each(|rank| choice_counts[*rank as usize] += 1);
        let mut starts = starts_of(&choice_counts);
        // A stable sort by destination: each destination's choices by row, then by choice.
        let mut sorted = vec![(0u32, 0u32); next.len()];
        for row in 0..self.rows.len() {
            for choice in self.choices(row) {
                let start = &mut starts[next[choice] as usize];
                sorted[*start] = (row as u32, choice as u32);
                *start += 1;
            }
        }
        let choices = sorted.iter().map(|(_, choice)| *choice).collect();
        let mut lists =
            Lists { rows: Vec::new(), row_counts: Vec::new(), choices, choice_counts, ends: Vec::new() };
        let mut begin = 0;
        for count in &lists.choice_counts {
            let before = lists.rows.len();
            for (number, (row, _)) in sorted[begin..begin + count].iter().enumerate() {
                let end = (begin + number + 1) as u32;
                match lists.ends.last_mut() {
                    Some(last) if lists.rows.len() > before && lists.rows.last() == Some(row) => *last = end,
                    _ => {
                        lists.rows.push(*row);
                        lists.ends.push(end);
                    }
                }
            }
            lists.row_counts.push(lists.rows.len() - before);
            begin += count;
        }
        lists
    }

    /// The words of some of the rows that are sent: source, token, and the choices with their weights.
    pub(super) fn write(&self, lists: &Lists, rows: std::ops::Range<usize>, words: &mut Vec<u32>) {
        let weight_words = size_of::<W>() / size_of::<u32>();
        for sent in rows {
            let row = self.rows[lists.rows[sent] as usize];
            let choices = lists.choices_of(sent);
            words.extend([row.source, row.token, choices.len() as u32]);
            for choice in choices {
                words.push(self.experts[*choice as usize]);
                let at = words.len();
                words.resize(at + weight_words, 0);
                let weight = std::slice::from_ref(&self.weights[*choice as usize]);
                SpanMut::of(&mut words[at..]).copy_from(Span::of(weight));
            }
        }
    }

    /// Adds the rows that stay at this rank.
    pub(super) fn keep(&mut self, of: &Stage<W>, lists: &Lists, rows: std::ops::Range<usize>) {
        for sent in rows {
            for choice in lists.choices_of(sent) {
                self.experts.push(of.experts[*choice as usize]);
                self.weights.push(of.weights[*choice as usize]);
            }
            let row = of.rows[lists.rows[sent] as usize];
            self.rows.push(Row { end: self.experts.len() as u32, ..row });
        }
    }

    /// Adds rows that came from a rank; their values begin at place `at`.
    ///
    /// # Errors
    /// [`Error::Internal`] where the words are not those of that number of rows.
    pub(super) fn read(
        &mut self,
        (layout, stretch): (&Layout, Stretch),
        (from, rows): (Rank, usize),
        words: &[u32],
        at: u32,
    ) -> Result<()> {
        let wrong = || Error::internal(format!("rank {from} sent rows of tokens whose words make no sense"));
        let weight_words = size_of::<W>() / size_of::<u32>();
        let mut rest = words;
        for number in 0..rows as u32 {
            let ([source, token, count], after) = rest
                .split_first_chunk::<ROW_WORDS>()
                .map(|(head, after)| (*head, after))
                .ok_or_else(wrong)?;
            let count = count as usize;
            let is_right = source < layout.size() && (1..=layout.options.top_k).contains(&count);
            let (choices, after) = after
                .split_at_checked(if is_right { count * (1 + weight_words) } else { usize::MAX })
                .ok_or_else(wrong)?;
            for choice in choices.chunks_exact(1 + weight_words) {
                if choice[0] >= layout.options.experts || !layout.takes(stretch, choice[0]) {
                    return Err(wrong());
                }
                let mut weight = W::default();
                SpanMut::of(std::slice::from_mut(&mut weight)).copy_from(Span::of(&choice[1..]));
                self.experts.push(choice[0]);
                self.weights.push(weight);
            }
            self.rows.push(Row { at: at + number, source, token, end: self.experts.len() as u32 });
            rest = after;
        }
        if rest.is_empty() { Ok(()) } else { Err(wrong()) }
    }
}

impl Lists {
    fn choices_of(&self, sent: usize) -> &[u32] {
        let begin = sent.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.choices[begin as usize..self.ends[sent] as usize]
    }
}

/// Where blocks of these lengths begin.
pub(super) fn starts_of(counts: &[usize]) -> Vec<usize> {
    let next = |end: &mut usize, count: &usize| {
        let start = *end;
        *end += count;
        Some(start)
    };
    counts.iter().scan(0, next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::{ExpertOptions, Route};

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let options = ExpertOptions::new(4, 8, 3, 16).route(Route::Direct);
        let layout = Layout::new::<f64>(0, vec![0, 0], options);
        let rows =
            vec![Row { at: 0, source: 0, token: 0, end: 3 }, Row { at: 1, source: 0, token: 1, end: 4 }];
        let stage = Stage { rows, experts: vec![3, 0, 2, 2], weights: vec![0.5f64, 0.25, 0.125, 1.0] };
        let lists = stage.lists(&layout, Stretch::Whole);
        assert_eq!((&lists.rows[..], &lists.row_counts[..]), (&[0, 0, 1][..], &[1, 2][..]));
        assert_eq!((&lists.choices[..], &lists.choice_counts[..]), (&[1, 0, 2, 3][..], &[1, 3][..]));
        let receiver = Layout::new::<f64>(1, vec![0, 0], options);
        let at_one = (&receiver, Stretch::Whole);
        let mut words = Vec::new();
        stage.write(&lists, 1..3, &mut words);
        let mut read = Stage::<f64>::new();
        read.read(at_one, (1, 2), &words, 7).expect("as written");
        assert_eq!((&read.experts[..], &read.weights[..]), (&[3, 2, 2][..], &[0.5, 0.125, 1.0][..]));
        assert_eq!(read.rows[1], Row { at: 8, source: 0, token: 1, end: 3 });
        for at in 0..words.len() {
            assert!(Stage::<f64>::new().read(at_one, (1, 2), &words[..at], 0).is_err(), "{at} words");
        }
        for (at, word) in [(0, 2), (2, 0), (2, 4), (2, u32::MAX), (3, 4), (3, 1)] {
            let mut wrong = words.clone();
            wrong[at] = word;
            assert!(Stage::<f64>::new().read(at_one, (1, 2), &wrong, 0).is_err(), "word {at} is {word}");
        }
        let mut own = Stage::<f64>::new();
        own.keep(&stage, &lists, 0..1);
        assert_eq!((own.rows[0].end, own.experts, own.weights), (1, vec![0], vec![0.25]));
    }
}
