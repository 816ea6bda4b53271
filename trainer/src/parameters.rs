//! Where parameters lie: in buckets, each some whole pages of memory that the ranks of a host can map.
//!
//! Invariant: parameters lie in the order in which backward finishes their gradients, so buckets become complete one after
//! the other, on all ranks in the same order. A parameter lies in one bucket, with all of its elements side by side, and its
//! gradient lies at the same place of the gradients. Buckets end on [`ALIGNMENT`] elements, so that ranks can share one
//! evenly; the elements between are zero and stay so. Absent: what moves buckets.

use std::ops::Range;

use consort::{Buckets, ReduceOp, SharedBuffer};

use crate::error::Result;
use crate::number::Number;
use crate::random::Random;
use crate::ranks::Tensor;

/// Bytes of a page: no two buckets share one.
const PAGE: usize = 4096;

/// Buckets have a multiple of this many elements.
pub const ALIGNMENT: usize = 64;

/// How a parameter begins.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Begin {
    /// With numbers of the normal distribution, mean 0 and this deviation.
    Normal(f64),
    /// With ones.
    Ones,
    /// With zeros.
    Zeros,
}

/// What changes a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The optimizer, by its gradient.
    Learned,
    /// The load of experts, which stands in the place of a gradient: for each one the tokens that went to it.
    Balanced {
        /// How many experts a token goes to.
        top_k: usize,
        /// Of how many.
        experts: usize,
    },
}

/// What the ranks that share a layer's matrices (tensor parallel) have of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// Each a part of its own.
    Split,
    /// Each the whole, and the whole gradient.
    Same,
    /// Each the whole, and the gradient of its own tokens: their sum is the gradient.
    Summed,
}

/// The ranks that have the same of a parameter, and sum its gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// All that have other tokens.
    All,
    /// Those of them that have the same experts.
    Experts,
}

/// Which of two ranks of a pipeline has a parameter that both have: the embedding, where it is the last matrix too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Twin {
    /// The first one, which counts it.
    First,
    /// The last one, which has a copy.
    Copy,
}

/// A parameter of a model, and what this rank has of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Its name in the whole model, whichever ranks have it: `layers.3.mlp.down`.
    pub name: String,
    /// The rows and columns of the whole; vectors have one row.
    pub whole: [usize; 2],
    /// The rows and columns that this rank has.
    pub part: [Range<usize>; 2],
    /// How it begins.
    pub begin: Begin,
    /// What changes it.
    pub rule: Rule,
    /// What the other ranks of the layer have.
    pub shared: Shared,
    /// Who sums its gradient.
    pub group: Group,
    /// Which of two ranks this is, where one other rank of the pipeline has the same, and both gradients are added up.
    pub twin: Option<Twin>,
    /// With which other weights it is needed; `None` where the model is one part.
    pub unit: Option<Unit>,
}

impl Parameter {
    /// A parameter that each rank has whole.
    pub fn new(name: impl Into<String>, whole: [usize; 2], begin: Begin) -> Self {
        let part = whole.map(|length| 0..length);
        Parameter {
            name: name.into(),
            whole,
            part,
            begin,
            rule: Rule::Learned,
            shared: Shared::Same,
            group: Group::All,
            twin: None,
            unit: None,
        }
    }

    /// The part in the rows and columns of rank `rank` of `ranks`, which share dimension `dimension` evenly.
    pub fn split(mut self, dimension: usize, rank: usize, ranks: usize) -> Self {
        if ranks > 1 {
            let length = self.whole[dimension] / ranks;
            self.part[dimension] = rank * length..(rank + 1) * length;
            self.shared = Shared::Split;
        }
        self
    }

    /// Whether the rank with this number among those that share each layer is to count it, where the whole model is put
    /// together or added up.
    pub fn is_counted(&self, tensor: usize) -> bool {
        self.twin != Some(Twin::Copy) && (tensor == 0 || self.shared == Shared::Split)
    }

    /// The rows and columns that this rank has.
    pub fn shape(&self) -> [usize; 2] {
        [self.part[0].len(), self.part[1].len()]
    }

    /// The number of elements that this rank has.
    pub fn elements(&self) -> usize {
        self.part[0].len() * self.part[1].len()
    }

    /// For each element that this rank has, its number in the whole parameter, row by row.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        let (columns, width) = (self.part[1].clone(), self.whole[1]);
        self.part[0].clone().flat_map(move |row| columns.clone().map(move |column| row * width + column))
    }

    /// Makes the gradient complete where each of `ranks` has that of its own tokens.
    ///
    /// # Errors
    /// What the all-reduce ends with.
    pub fn complete<T: Number>(&self, gradient: &mut [T], ranks: &Tensor<'_>) -> Result<()> {
        if self.shared == Shared::Summed { ranks.all_reduce(gradient, ReduceOp::Sum) } else { Ok(()) }
    }

    /// Whether weight decay pulls it towards zero: matrices, not the scales of norms.
    pub fn decays(&self) -> bool {
        self.whole[0] > 1
    }
}

/// The number of a parameter in its layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ParameterId(usize);

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Which parameters a model has, and where each lies.
#[derive(Clone, PartialEq, Debug)]
pub struct Layout {
    parameters: Vec<Parameter>,
    buckets: Buckets,
}

impl Layout {
    /// Lays parameters out that are given in the order in which backward finishes their gradients. A bucket is closed when
    /// it has `bucket_elements` or more, and where a unit or a group of ranks ends. `ranks` ranks can share each bucket evenly.
    pub fn new(parameters: Vec<Parameter>, bucket_elements: usize, ranks: usize) -> Self {
        let alignment = ALIGNMENT * ranks / common_divisor(ALIGNMENT, ranks);
        let tensors =
            parameters.iter().map(|parameter| (parameter.elements(), (parameter.unit, parameter.group)));
        let buckets = Buckets::new(tensors, bucket_elements, alignment);
        Layout { parameters, buckets }
    }

    /// The parameters with their numbers, in the order in which backward finishes their gradients.
    pub fn parameters(&self) -> impl Iterator<Item = (ParameterId, &Parameter)> {
        self.parameters.iter().enumerate().map(|(number, parameter)| (ParameterId(number), parameter))
    }

    /// The parameters of a bucket, as [`Layout::parameters`].
    pub fn of_bucket(&self, bucket: usize) -> impl Iterator<Item = (ParameterId, &Parameter)> {
        self.buckets.members(bucket).map(|number| (ParameterId(number), &self.parameters[number]))
    }

    /// The elements of all parameters.
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(Parameter::elements).sum()
    }

    /// The name, place and kind of a parameter.
    pub fn parameter(&self, id: ParameterId) -> &Parameter {
        &self.parameters[id.0]
    }

    /// The elements of a bucket, those behind its last parameter among them.
    pub fn bucket_elements(&self, bucket: usize) -> usize {
        self.buckets.elements(bucket)
    }

    /// Who sums the gradients of a bucket.
    pub fn group(&self, bucket: usize) -> Group {
        self.parameters[self.buckets.members(bucket).start].group
    }

    /// The buckets of a unit, none if this rank has nothing of it.
    pub fn unit(&self, unit: Unit) -> Range<usize> {
        let of_unit = |(number, parameter): (usize, &Parameter)| {
            (parameter.unit == Some(unit)).then(|| self.buckets.bucket(number))
        };
        let mut buckets = self.parameters.iter().enumerate().filter_map(of_unit);
        let Some(first) = buckets.next() else { return 0..0 };
        first..buckets.next_back().unwrap_or(first) + 1
    }

    /// Fills `elements`, a bucket of zeros, with what training begins with: a function of the seed and each parameter's name.
    pub fn begin<T: Number>(&self, bucket: usize, seed: u64, elements: &mut [T]) {
        for (id, parameter) in self.of_bucket(bucket) {
            let random = Random::new(seed, &parameter.name);
            let place = &mut elements[self.range(id)];
            match parameter.begin {
                Begin::Ones => place.fill(T::ONE),
                Begin::Zeros => {}
                Begin::Normal(deviation) => {
                    for (index, value) in parameter.numbers().zip(place) {
                        *value = T::of(deviation * random.normal(index as u64));
                    }
                }
            }
        }
    }

    /// The number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The bucket of a parameter.
    pub fn bucket(&self, id: ParameterId) -> usize {
        self.buckets.bucket(id.0)
    }

    /// The elements of a parameter within its bucket.
    pub fn range(&self, id: ParameterId) -> Range<usize> {
        self.buckets.range(id.0)
    }

    /// How many parameters each bucket has.
    pub fn members(&self) -> Vec<usize> {
        (0..self.buckets.len()).map(|bucket| self.buckets.members(bucket).len()).collect()
    }
}

/// One number for each element of a layout: the parameters themselves, their gradients, or a moment.
pub struct Values<T: Number> {
    /// One piece for all buckets: each piece has descriptors, and a large model has more buckets than a process may have of those.
    memory: SharedBuffer<T>,
    /// Where the buckets lie, one behind the other.
    buckets: Vec<Range<usize>>,
}

impl<T: Number> Values<T> {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::error::Error::Memory) where there are no pages.
    pub fn zeros(layout: &Layout) -> Result<Self> {
        Self::shares(layout, |_| 1)
    }

    /// Zeros for the share of each bucket that one of its `ranks` ranks has. What is said by parameter is of all elements alone.
    ///
    /// # Errors
    /// As [`Values::zeros`].
    pub fn shares(layout: &Layout, ranks: impl Fn(usize) -> usize) -> Result<Self> {
        let mut end = 0usize;
        let range = |bucket| {
            let start = end.next_multiple_of(PAGE / size_of::<T>());
            end = start + layout.bucket_elements(bucket) / ranks(bucket);
            start..end
        };
        let buckets = (0..layout.buckets()).map(range).collect();
        Ok(Values { memory: consort::alloc(end)?, buckets })
    }

    /// What training begins with: a function of the seed and each parameter's name.
    ///
    /// # Errors
    /// As [`Values::zeros`].
    pub fn begin(layout: &Layout, seed: u64) -> Result<Self> {
        let mut values = Self::zeros(layout)?;
        for bucket in 0..layout.buckets() {
            layout.begin(bucket, seed, values.bucket_mut(bucket));
        }
        Ok(values)
    }

    /// A parameter's elements.
    pub fn of(&self, layout: &Layout, id: ParameterId) -> &[T] {
        &self.memory[self.place(layout, id)]
    }

    /// A parameter's elements, to be changed.
    pub fn of_mut(&mut self, layout: &Layout, id: ParameterId) -> &mut [T] {
        let place = self.place(layout, id);
        &mut self.memory[place]
    }

    fn place(&self, layout: &Layout, id: ParameterId) -> Range<usize> {
        let (bucket, range) = (layout.bucket(id), layout.range(id));
        let start = self.buckets[bucket].start;
        start + range.start..start + range.end
    }

    /// A bucket.
    pub fn bucket(&self, bucket: usize) -> &[T] {
        &self.memory[self.buckets[bucket].clone()]
    }

    /// A bucket, to be changed.
    pub fn bucket_mut(&mut self, bucket: usize) -> &mut [T] {
        &mut self.memory[self.buckets[bucket].clone()]
    }

    /// The memory of all buckets, that between them included.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.memory[..])
    }

    /// The buckets.
    pub fn buckets(&self) -> impl Iterator<Item = &[T]> {
        self.buckets.iter().map(|bucket| &self.memory[bucket.clone()])
    }

    /// The buckets, to be changed or lent.
    pub fn buckets_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (mut rest, mut at) = (&mut self.memory[..], 0);
        self.buckets.iter().map(move |bucket| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(bucket.start - at);
            let (elements, behind) = from.split_at_mut(bucket.len());
            (rest, at) = (behind, bucket.end);
            elements
        })
    }
}

/// Parts of a model whose weights are needed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// The embedding.
    Embedding,
    /// A block, by its number in the whole model.
    Block(usize),
    /// The last norm and the matrix to the logits.
    End,
}

/// Where forward and backward find weights.
pub trait Weights<T: Number> {
    /// The weights of a unit are needed from here on, in [`Pass::Forward`] or [`Pass::Backward`].
    ///
    /// # Errors
    /// What bringing them here ends with.
    fn enter(&mut self, unit: Unit, pass: Pass) -> Result<()>;

    /// The elements of a parameter whose unit was entered.
    fn of(&self, id: ParameterId) -> &[T];

    /// The weights of a unit are not needed until it is entered again.
    ///
    /// # Errors
    /// As [`Weights::enter`].
    fn leave(&mut self, unit: Unit) -> Result<()>;
}

/// Which way a model is gone through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// From the embedding to the loss.
    Forward,
    /// From the loss to the embedding.
    Backward,
}

/// Weights that are all here.
pub struct Present<'a, T: Number> {
    layout: &'a Layout,
    values: &'a Values<T>,
}

impl<'a, T: Number> Present<'a, T> {
    /// The weights in `values`.
    pub fn new(layout: &'a Layout, values: &'a Values<T>) -> Self {
        Present { layout, values }
    }
}

impl<T: Number> Weights<T> for Present<'_, T> {
    fn enter(&mut self, _: Unit, _: Pass) -> Result<()> {
        Ok(())
    }

    fn of(&self, id: ParameterId) -> &[T] {
        self.values.of(self.layout, id)
    }

    fn leave(&mut self, _: Unit) -> Result<()> {
        Ok(())
    }
}

/// Where backward leaves gradients.
pub trait Gradients<T: Number> {
    /// The place to which a parameter's gradient is added.
    ///
    /// # Panics
    /// If the parameter's gradient was said to be finished.
    fn place(&mut self, id: ParameterId) -> &mut [T];

    /// Nothing more will be added to the parameter's gradient.
    ///
    /// # Errors
    /// What starting the exchange of a bucket ends with.
    fn finished(&mut self, id: ParameterId) -> Result<()>;

    /// What one of several backward passes adds to the parameter's gradient is there, and later ones add more.
    ///
    /// # Errors
    /// As [`Gradients::finished`].
    fn added(&mut self, _: ParameterId) -> Result<()> {
        Ok(())
    }
}

/// Gradients that are each rank's own.
pub struct Local<'a, T: Number> {
    layout: &'a Layout,
    values: &'a mut Values<T>,
    ranks: Tensor<'a>,
}

impl<'a, T: Number> Local<'a, T> {
    /// Gradients in `values`, to which backward adds. What `ranks` have parts of is summed when it is finished.
    pub fn new(layout: &'a Layout, values: &'a mut Values<T>, ranks: Tensor<'a>) -> Self {
        Local { layout, values, ranks }
    }
}

/// Gradients to which later backward passes add: none of them is finished.
pub struct Unfinished<'a, T: Number>(pub &'a mut dyn Gradients<T>);

impl<T: Number> Gradients<T> for Unfinished<'_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        self.0.place(id)
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        self.0.added(id)
    }
}

impl<T: Number> Gradients<T> for Local<'_, T> {
    fn place(&mut self, id: ParameterId) -> &mut [T] {
        self.values.of_mut(self.layout, id)
    }

    fn finished(&mut self, id: ParameterId) -> Result<()> {
        self.layout.parameter(id).complete(self.values.of_mut(self.layout, id), &self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bucket_elements: usize) -> Layout {
        let parameter = |(name, rows, columns): (&str, usize, usize)| {
            let begin = if rows > 1 { Begin::Normal(0.5) } else { Begin::Ones };
            Parameter::new(name, [rows, columns], begin)
        };
        Layout::new([("a", 10, 10), ("b", 1, 10), ("c", 4, 4)].map(parameter).into(), bucket_elements, 1)
    }

    #[test]
    fn buckets_are_closed_when_they_are_full_and_padded() {
        let one = layout(1000);
        assert_eq!((one.bucket_elements(0), one.members(), one.elements()), (128, vec![3], 126));
        let two = layout(105);
        assert_eq!(
            ([0, 1].map(|bucket| two.bucket_elements(bucket)), two.members()),
            ([128, 64], vec![2, 1])
        );
        assert_eq!(layout(1).members(), [1, 1, 1]);
        let places: Vec<_> = two.parameters().map(|(id, _)| (two.bucket(id), two.range(id))).collect();
        assert_eq!(places, [(0, 0..100), (0, 100..110), (1, 0..16)]);
    }

    #[test]
    fn buckets_end_where_units_end() {
        let unit = |unit: Unit, name: &str| Parameter {
            unit: Some(unit),
            ..Parameter::new(name, [1, 50], Begin::Ones)
        };
        let (first, second) = (Unit::Block(1), Unit::Block(0));
        let parameters = vec![unit(first, "a"), unit(first, "b"), unit(first, "c"), unit(second, "d")];
        let layout = Layout::new(parameters, 100, 1);
        assert_eq!(layout.members(), [2, 1, 1]);
        assert_eq!([first, second, Unit::End].map(|unit| layout.unit(unit)), [0..2, 2..3, 0..0]);
    }

    #[test]
    fn ranks_share_each_bucket_evenly() {
        for ranks in [1, 2, 3, 6, 64, 100] {
            let parameters =
                (0..5).map(|n| Parameter::new(format!("{n}"), [n + 1, 37], Begin::Ones)).collect();
            let layout = Layout::new(parameters, 50, ranks);
            for bucket in 0..layout.buckets() {
                let elements = layout.bucket_elements(bucket);
                assert!(
                    elements.is_multiple_of(ranks) && elements.is_multiple_of(ALIGNMENT),
                    "{elements} of {ranks}"
                );
            }
        }
    }

    #[test]
    fn parts_begin_as_the_same_elements_of_the_whole() {
        let whole = || Parameter::new("m", [6, 4], Begin::Normal(1.0));
        let begin = |parameter| {
            let layout = Layout::new(vec![parameter], 1, 1);
            let id = layout.parameters().next().unwrap().0;
            Values::<f64>::begin(&layout, 3).unwrap().of(&layout, id).to_vec()
        };
        let all = begin(whole());
        assert_eq!(begin(whole().split(0, 1, 3)), all[8..16]);
        let columns: Vec<f64> = all.chunks(4).flat_map(|row| row[2..].to_vec()).collect();
        assert_eq!(begin(whole().split(1, 1, 2)), columns);
    }

    #[test]
    fn buckets_share_no_page() {
        let layout = layout(105);
        let mut values = Values::<f64>::zeros(&layout).unwrap();
        let starts: Vec<usize> = values.buckets().map(|bucket| bucket.as_ptr() as usize).collect();
        assert!(starts.iter().all(|start| start.is_multiple_of(PAGE)), "{starts:?}");
        values.buckets_mut().zip(1..).for_each(|(bucket, number)| bucket.fill(f64::from(number)));
        for (id, parameter) in layout.parameters() {
            let number = layout.bucket(id) as f64 + 1.0;
            assert!(values.of(&layout, id).iter().all(|value| *value == number), "{}", parameter.name);
        }
    }

    #[test]
    fn beginnings_do_not_depend_on_the_buckets() {
        let (one, two) = (layout(1000), layout(1));
        let [first, second] = [&one, &two].map(|layout| Values::<f32>::begin(layout, 5).unwrap());
        for (id, parameter) in one.parameters() {
            assert_eq!(first.of(&one, id), second.of(&two, id), "{}", parameter.name);
        }
        let id = one.parameters().nth(1).unwrap().0;
        assert!(first.of(&one, id).iter().all(|value| *value == 1.0));
        assert!(first.buckets().all(|bucket| bucket[126..].iter().all(|value| *value == 0.0)));
    }
}
