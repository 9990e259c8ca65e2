// The text of an event stream as events (the HTML standard, 9.2.6).
// feed() it text as it comes; it calls on({id, type, data}) for each whole event.
export class EventParser {
  constructor(on) {
    this.on = on;
    this.rest = "";
    this.retry_s = undefined;
    this.clear();
  }

  clear() {
    this.id = undefined;
    this.type = "message";
    this.data = [];
  }

  feed(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.on({ id: this.id, type: this.type, data: this.data.join("\n") });
      this.clear();
      return;
    }
    const [, name, value] = line.match(/^([^:]*)(?:: ?(.*))?$/s);
    if (name === "id") this.id = value;
    else if (name === "event") this.type = value;
    else if (name === "data") this.data.push(value ?? "");
    else if (name === "retry" && /^\d+$/.test(value)) this.retry_s = Number(value) / 1000;
  }
}
