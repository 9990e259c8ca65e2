// A curve of bounded memory: points (step, value) of one metric, ascending, as they come.
//
// When there are more than it may hold, of each four neighbours the least and the greatest stay, so
// peaks survive and each point is a real one. What JSON has no numbers for comes as "nan", "inf",
// "-inf", and becomes NaN, which charts show as a gap.
const MOST = 4000;

function toNumber(value) {
  return typeof value === "number" ? value : NaN;
}

export class Series {
  constructor(most = MOST) {
    this.most = most;
    this.steps = [];
    this.values = [];
  }

  // The last step; -1: there is none.
  get last() {
    return this.steps.length ? this.steps[this.steps.length - 1] : -1;
  }

  // Appends what lies behind the last step; `answer` is a series of GET …/metrics.
  extend({ steps, values }) {
    for (let i = 0; i < steps.length; i++) {
      if (steps[i] <= this.last) continue;
      this.steps.push(steps[i]);
      this.values.push(toNumber(values[i]));
    }
    while (this.steps.length > this.most) this.thin();
  }

  // Takes back what lies beyond `step`: training went on from there anew.
  rewind(step) {
    let length = this.steps.length;
    while (length && this.steps[length - 1] > step) length--;
    this.steps.length = this.values.length = length;
  }

  thin() {
    const steps = [];
    const values = [];
    const keep = (i) => {
      steps.push(this.steps[i]);
      values.push(this.values[i]);
    };
    for (let at = 0; at < this.steps.length; at += 4) {
      const end = Math.min(at + 4, this.steps.length);
      let low = at;
      let high = at;
      for (let i = at + 1; i < end; i++) {
        if (this.values[i] < this.values[low] || Number.isNaN(this.values[low])) low = i;
        if (this.values[i] >= this.values[high] || Number.isNaN(this.values[high])) high = i;
      }
      keep(Math.min(low, high));
      if (low !== high) keep(Math.max(low, high));
    }
    this.steps = steps;
    this.values = values;
  }
}
