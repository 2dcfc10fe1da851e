"""Applications as S4's own documents have them, and one in which keys stay and change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.apps.elements import SAME_KEY, App, Element, Stream

if TYPE_CHECKING:
    from headrace.keyed import Event


@dataclass
class Hello(Element):
    """Greets a name, and counts how often."""

    greetings = Stream("greetings")

    events: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.events += 1
        self.emit(self.greetings, {"key": self.key, "events": self.events})


class HelloApp(App):
    """The input stream of the document, whose key finder takes the name out of each event."""

    @override
    def on_init(self) -> None:
        hello = self.create_element(Hello)
        self.create_input_stream("names", lambda event: [event["name"]], hello)
        self.create_output_stream("greetings")


class HelloSingleton(App):
    """The same without a key finder, and with one instance."""

    @override
    def on_init(self) -> None:
        hello = self.create_element(Hello, singleton="partition")
        self.create_input_stream("names", hello)
        self.create_output_stream("greetings")


@dataclass
class TopicExtractor(Element):
    """Emits each topic of a text."""

    downstream = Stream("downstream")

    @override
    def on_event(self, event: Event[Any]) -> None:
        for word in event.value["text"].split():
            if word.startswith("#"):
                self.emit(self.downstream, {"topic": word})


@dataclass
class TopicCountAndReport(Element):
    """Counts the events of a topic, and reports the count."""

    downstream = Stream("downstream")

    count: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.count += 1

    @override
    def on_time(self) -> None:
        self.emit(self.downstream, {"topic": self.key, "count": self.count})


@dataclass
class TopNTopics(Element):
    """Knows the latest count of each topic, and emits those with the most."""

    top = Stream("top")

    counts: dict[str, int] = field(default_factory=dict)

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.counts[event.value["topic"]] = event.value["count"]

    @override
    def on_time(self) -> None:
        ranked = sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))
        self.emit(self.top, [list(each) for each in ranked[:2]])


class TwitterCounter(App):
    """The example of S4: topics of texts are counted, and those with the most are found."""

    @override
    def on_init(self) -> None:
        top = self.create_element(TopNTopics, interval="10s")
        aggregated = self.create_stream("aggregated-topic-seen", lambda _: "aggregationKey", top)
        count = self.create_element(TopicCountAndReport, interval="10s", downstream=aggregated)
        seen = self.create_stream("topic-seen", "topic", count)
        extractor = self.create_element(TopicExtractor, singleton="partition", downstream=seen)
        self.create_input_stream("raw-status", extractor)
        self.create_output_stream("top")


@dataclass
class Basket(Element):
    """Sums the orders of a customer, and emits the sum and what was ordered."""

    sums = Stream("sums")
    goods = Stream("goods")

    total: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.total += event.value["price"]
        self.emit(self.sums, {"total": self.total, "seen": [self.total]})
        self.emit(self.goods, {"good": event.value["good"], "price": event.value["price"]})


@dataclass
class Alarm(Element):
    """Emits once when the sum of a customer has passed 100."""

    alarms = Stream("alarms")

    raised: bool = False

    @override
    def on_event(self, event: Event[Any]) -> None:
        event.value["seen"].append("changed here")
        if event.value["total"] > 100 and not self.raised:
            self.raised = True
            self.emit(self.alarms, {"customer": self.key, "total": event.value["total"]})


@dataclass
class Sales(Element):
    """Sums the price of a good."""

    total: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.total += event.value["price"]


class Shop(App):
    """Three elements: by customer, once more by customer, and by good."""

    name = "shop"

    @override
    def on_init(self) -> None:
        basket = self.create_element(Basket)
        alarm = self.create_element(Alarm)
        sales = self.create_element(Sales, "SalesOfGood")
        self.create_input_stream("orders", "customer", basket)
        self.create_stream("sums", SAME_KEY, alarm)
        self.create_stream("goods", "good", sales)
        self.create_output_stream("alarms", SAME_KEY, topic="shop-alarms")
