import { render } from "preact";
import { pages } from "./pages.js";
import "./style.css";
import { Shell } from "./ui/shell.jsx";

render(<Shell pages={pages} />, document.getElementById("app"));
