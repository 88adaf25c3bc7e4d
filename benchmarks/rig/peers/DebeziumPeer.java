import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's engine counts the rows that were inserted into a table, without converting its events to text. Arguments: a
 * file with settings, the table, and the number of rows.
 */
public class DebeziumPeer {
    private static long rows, ids;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.load(Files.newBufferedReader(Path.of(arguments[0])));
        settings.put("database.password", System.getenv("PEER_PASSWORD"));
        String table = arguments[1];
        long expected = Long.parseLong(arguments[2]);
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
            DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(settings)
                .using((ok, message, error) -> {
                    System.err.println("engine ended: " + message + " " + error);
                    Runtime.getRuntime().halt(ok ? 0 : 1);
                })
                .notifying((events, committer) -> {
                    for (RecordChangeEvent<SourceRecord> event : events) {
                        Struct value = (Struct) event.record().value();
                        if (value.schema().field("after") != null
                                && table.equals(value.getStruct("source").getString("table"))) {
                            if (rows == 0) {
                                System.out.println("first");
                            }
                            ids += value.getStruct("after").getInt64("id");
                            rows++;
                        }
                        committer.markProcessed(event);
                    }
                    committer.markBatchFinished();
                    if (rows >= expected) {
                        Ends.report(rows, ids);
                    }
                })
                .build();
        engine.run();
    }
}
