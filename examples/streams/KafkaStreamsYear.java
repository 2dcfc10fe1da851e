import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.TimestampExtractor;

/**
 * The topology of hours.py as a program of Kafka Streams.
 *
 * <p>Arguments: brokers, folder for state, how long the flights are in milliseconds. It runs until
 * it is killed.
 */
public final class KafkaStreamsYear {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Serde<String> TEXT = Serdes.String();
  private static final String[] WEATHER = {"temp", "wind", "visib"};

  // In spans of the flights. Nobody waits for a partition: the demo's last records, two and four
  // spans after the others, may be read first and must not end what they come before.
  private static final int WINDOW_GRACE = 3;
  private static final int JOIN_GRACE = 6;

  /** Takes the time of a record from its value. */
  public static final class At implements TimestampExtractor {
    @Override
    public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
      return parse((String) record.value()).get("at").asLong();
    }
  }

  public static void main(String[] arguments) throws InterruptedException {
    Properties chosen = new Properties();
    chosen.put(StreamsConfig.APPLICATION_ID_CONFIG, "kafka-streams-year");
    chosen.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    chosen.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
    chosen.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    chosen.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    chosen.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    // it looks for rows without a partner once in a second of the clock otherwise
    chosen.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
    StreamsBuilder builder = new StreamsBuilder();
    build(builder, Duration.ofMillis(Long.parseLong(arguments[2])));
    CountDownLatch failed = new CountDownLatch(1);
    KafkaStreams streams = new KafkaStreams(builder.build(), chosen);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          failed.countDown();
          return StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    streams.start();
    failed.await();
    System.exit(1);
  }

  private static void build(StreamsBuilder builder, Duration span) {
    Consumed<String, String> timed =
        Consumed.with(TEXT, TEXT).withTimestampExtractor(new At());
    KTable<String, String> planes = builder.table("planes", Consumed.with(TEXT, TEXT));
    KStream<String, String> hours =
        builder.stream("flights", timed)
            .leftJoin(planes, KafkaStreamsYear::flown)
            .groupBy((tail, flown) -> text(flown, "origin"), Grouped.with("hours", TEXT, TEXT))
            .windowedBy(
                TimeWindows.ofSizeAndGrace(
                    Duration.ofHours(1), span.multipliedBy(WINDOW_GRACE)))
            .aggregate(
                () -> "{}", KafkaStreamsYear::added, Materialized.with(TEXT, TEXT))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .map((hour, row) -> KeyValue.pair(hour.key(), begun(row, hour.window().start())));
    hours.to("kafka-streams.hours", Produced.with(TEXT, TEXT));
    JoinWindows within =
        JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, span.multipliedBy(JOIN_GRACE))
            .before(Duration.ofMinutes(59))
            .after(Duration.ZERO);
    hours
        .leftJoin(
            builder.stream("weather", timed),
            KafkaStreamsYear::observed,
            within,
            StreamJoined.with(TEXT, TEXT, TEXT))
        .to("kafka-streams.observed", Produced.with(TEXT, TEXT));
  }

  /** Returns a flight with what is known of its plane. */
  private static String flown(String flight, String plane) {
    ObjectNode made = parse(flight);
    if (plane != null) {
      ObjectNode known = parse(plane);
      made.set("seats", known.get("seats"));
      made.set("built", known.get("year"));
    }
    return made.toString();
  }

  /** Returns the row of an hour with one flight more. */
  private static String added(String origin, String flown, String row) {
    ObjectNode made = parse(row);
    ObjectNode flight = parse(flown);
    made.put("origin", origin);
    made.put("flights", made.path("flights").asLong() + 1);
    add(made, "seats", flight.path("seats"));
    add(made, "delay", flight.path("delay"));
    JsonNode built = flight.path("built");
    if (built.isNumber()
        && (!made.has("oldest") || built.asLong() < made.get("oldest").asLong())) {
      made.put("oldest", built.asLong());
    }
    return made.toString();
  }

  private static void add(ObjectNode row, String name, JsonNode value) {
    if (value.isNumber()) {
      row.put(name, row.path(name).asLong() + value.asLong());
    }
  }

  private static String begun(String row, long begin) {
    return parse(row).put("begin", begin).toString();
  }

  /** Returns an hour with its weather, null where there is none. */
  private static String observed(String hour, String weather) {
    ObjectNode made = parse(hour);
    if (weather != null) {
      ObjectNode found = parse(weather);
      for (String name : WEATHER) {
        made.set(name, found.get(name));
      }
    }
    return made.toString();
  }

  private static String text(String row, String name) {
    return parse(row).get(name).asText();
  }

  private static ObjectNode parse(String value) {
    try {
      return (ObjectNode) JSON.readTree(value);
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException(error);
    }
  }
}
